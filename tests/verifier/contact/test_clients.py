# ruff: noqa: N802 (gRPC names the methods)
"""Chips and Provers that break the protocol: whatever they send, a client raises one of our errors, and soon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status
from support.chip_logs import SALT, LogBuilder, make_device

from firmware_sim.service import ALLOW
from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc, prover_pb2, prover_pb2_grpc
from prover.service import ALLOW as PROVER_ALLOW
from verifier.contact.clients import MAX_ENTRIES, MAX_LEAVES, ChipClient, ProverClient
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.attest.tokens import Token
from weighbridge.core.errors import IdentityError, TokenError, WeighbridgeError
from weighbridge.rpc import endpoints

LEAF = chip_pb2.Leaf(bytes=8, digest=b"d" * 32)


class HostileChip(chip_pb2_grpc.ChipServiceServicer):
    """Streams what a test tells it to."""

    entries: list[chip_pb2.ListEntriesResponse]
    opening: list[chip_pb2.OpenSnapshotResponse]

    def ListEntries(self, request: Any, context: Any) -> Iterator[chip_pb2.ListEntriesResponse]:
        yield from self.entries

    def OpenSnapshot(self, request: Any, context: Any) -> Iterator[chip_pb2.OpenSnapshotResponse]:
        yield from self.opening

    identity: chip_pb2.GetIdentityResponse

    def GetIdentity(self, request: Any, context: Any) -> chip_pb2.GetIdentityResponse:
        return self.identity

    def GetHead(self, request: Any, context: Any) -> chip_pb2.GetHeadResponse:
        """Answers with an error whose details are named to confuse."""
        names = ("self", "message", "code", "class", "args", "details", "not an identifier")
        info = error_details_pb2.ErrorInfo(
            reason="snapshot.unexplained", domain="weighbridge", metadata=dict.fromkeys(names, "x")
        )
        status = status_pb2.Status(code=code_pb2.ABORTED, message="no")
        status.details.add().Pack(info)
        context.abort_with_status(rpc_status.to_status(status))
        raise AssertionError


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority.create("Station")


@pytest.fixture(scope="module")
def verifier(authority: CertificateAuthority) -> Credentials:
    return authority.issue_role("verifier", "v")


@pytest.fixture(scope="module")
def chip() -> HostileChip:
    return HostileChip()


@pytest.fixture(scope="module")
def client(authority: CertificateAuthority, verifier: Credentials, chip: HostileChip) -> Iterator[ChipClient]:
    server, address = endpoints.server(authority.issue_role("chip", "c"), allow=ALLOW)
    chip_pb2_grpc.add_ChipServiceServicer_to_server(chip, server)  # type: ignore[no-untyped-call]
    server.start()
    with ChipClient(address, verifier) as client:
        yield client
    server.stop(0)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Token:
    """A snapshot of two storages."""
    log = LogBuilder(make_device(tmp_path_factory.mktemp("chip"), CertificateAuthority.create("M"))).boot()
    return log.token("snapshot", {"leaves": 2})


def test_an_identity_is_believed_only_as_far_as_it_is_signed(
    client: ChipClient, chip: HostileChip, tmp_path: Path
) -> None:
    maker = CertificateAuthority.create("M")
    device = make_device(tmp_path, maker)
    log, nonce = LogBuilder(device).boot(), b"n" * 32
    honest = chip_pb2.GetIdentityResponse(
        ueid=device.ueid,
        certificate_chain=device.chain,
        firmware_version=device.tcb.version,
        firmware_digest=device.tcb.measurement,
        token=log.head(nonce),
        firmware_svn=device.tcb.svn,
        mode=device.tcb.mode,
        hwmodel=device.tcb.model,
    )
    chip.identity = honest
    assert client.identity(nonce, maker.certificate).identity.tcb == device.tcb
    lies: list[dict[str, Any]] = [
        {"token": log.head(b"another nonce")},
        {"token": log.entries[0]},
        {"token": b""},
        {"ueid": bytes(17)},
        {"firmware_version": "9.9"},
        {"firmware_digest": bytes(48)},
        {"firmware_svn": 7},
        {"mode": "debug"},
        {"hwmodel": "H-200"},
    ]
    for lie in lies:
        chip.identity = chip_pb2.GetIdentityResponse()
        chip.identity.CopyFrom(honest)
        for name, value in lie.items():
            setattr(chip.identity, name, value)
        with pytest.raises(TokenError):
            client.identity(nonce, maker.certificate)
    chip.identity = honest
    with pytest.raises(IdentityError):
        client.identity(nonce, CertificateAuthority.create("M").certificate)


def entry(index: int, size: int = 10) -> chip_pb2.ListEntriesResponse:
    return chip_pb2.ListEntriesResponse(index=index, token=b"t" * size)


def test_entries_in_order_arrive(client: ChipClient, chip: HostileChip) -> None:
    chip.entries = [entry(0), entry(1)]
    assert list(client.entries(2)) == [b"t" * 10] * 2


@pytest.mark.parametrize(
    "sent", [[entry(1)], [entry(0), entry(0)], [entry(0), entry(1), entry(2)], [entry(0, 70_000)], [entry(2**64 - 1)]]
)
def test_entries_out_of_order_too_many_or_too_large(
    client: ChipClient, chip: HostileChip, sent: list[chip_pb2.ListEntriesResponse]
) -> None:
    chip.entries = sent
    with pytest.raises(WeighbridgeError) as caught:
        list(client.entries(2))
    assert caught.value.reason == "chip.log.incomplete"


def test_a_log_of_impossible_length_is_not_read(client: ChipClient) -> None:
    with pytest.raises(WeighbridgeError) as caught:
        list(client.entries(MAX_ENTRIES + 1))
    assert caught.value.reason == "chip.log.size"


def test_an_opening_in_several_messages_arrives(client: ChipClient, chip: HostileChip, snapshot: Token) -> None:
    first = chip_pb2.OpenSnapshotResponse(salt=SALT)
    chip.opening = [first, chip_pb2.OpenSnapshotResponse(leaves=[LEAF]), chip_pb2.OpenSnapshotResponse(leaves=[LEAF])]
    opening = client.open_snapshot(snapshot)
    assert opening.salt == SALT
    assert opening.leaves == [(8, b"d" * 32)] * 2


@pytest.mark.parametrize(
    "sent",
    [
        [],
        [chip_pb2.OpenSnapshotResponse(leaves=[LEAF])],
        [chip_pb2.OpenSnapshotResponse(salt=SALT), chip_pb2.OpenSnapshotResponse(salt=SALT)],
        [chip_pb2.OpenSnapshotResponse(salt=b"short")],
        [chip_pb2.OpenSnapshotResponse(salt=SALT), chip_pb2.OpenSnapshotResponse(leaves=[LEAF] * 3)],
        [chip_pb2.OpenSnapshotResponse(salt=SALT), chip_pb2.OpenSnapshotResponse(leaves=[chip_pb2.Leaf(bytes=1)])],
    ],
)
def test_openings_of_another_form(
    client: ChipClient, chip: HostileChip, snapshot: Token, sent: list[chip_pb2.OpenSnapshotResponse]
) -> None:
    chip.opening = sent
    with pytest.raises(WeighbridgeError) as caught:
        client.open_snapshot(snapshot)
    assert caught.value.reason == "format.malformed"


def test_a_snapshot_of_impossibly_many_storages_is_not_read(
    client: ChipClient, chip: HostileChip, tmp_path: Path
) -> None:
    log = LogBuilder(make_device(tmp_path / "chip", CertificateAuthority.create("M"))).boot()
    with pytest.raises(WeighbridgeError, match="storages"):
        client.open_snapshot(log.token("snapshot", {"leaves": MAX_LEAVES + 1}))


def test_an_error_with_confusing_details_is_still_one_of_ours(client: ChipClient) -> None:
    with pytest.raises(WeighbridgeError) as caught:
        client.head(bytes(32))
    assert caught.value.finding().severity == "violation"


class HostileProver(prover_pb2_grpc.ProverServiceServicer):
    """Says that it is as far as a test tells it to."""

    def __init__(self, said: list[tuple[int, int]]) -> None:
        self._said = said

    def FetchSupplements(self, request: Any, context: Any) -> Iterator[prover_pb2.FetchSupplementsResponse]:
        for done, total in self._said:
            progress = prover_pb2.RegenerationProgress(done=done, total=total)
            yield prover_pb2.FetchSupplementsResponse(progress=progress)


def test_progress_that_cannot_be_is_not_shown(authority: CertificateAuthority, verifier: Credentials) -> None:
    """Of the steps 3 and 4 of a run at most five are executed, from step 0 on."""
    true, told = [(0, 0), (0, 2), (2, 2), (3, 5), (5, 5)], list[tuple[int, int]]()
    false = [(3, 2), (0, 6), (1 << 31, 1 << 31), (1, 0)]
    server, address = endpoints.server(authority.issue_role("prover", "p"), allow=PROVER_ALLOW)
    prover = HostileProver([each for pair in zip(false, true, strict=False) for each in pair] + true[4:])
    prover_pb2_grpc.add_ProverServiceServicer_to_server(prover, server)  # type: ignore[no-untyped-call]
    server.start()
    with ProverClient(address, verifier) as client:
        sent = client.supplements("0" * 64, (3, 5), deadline_s=60, progress=lambda *each: told.append(each))
        assert list(sent) == []
    server.stop(0)
    assert told == true
