# ruff: noqa: N802 (gRPC names the methods)
"""Callers and servers whose certificates are revoked: over real sockets, with a thief in the way."""

from __future__ import annotations

import datetime
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc
from verifier.contact.clients import ProverClient
from weighbridge.attest import credential_files, revocation
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.attest.role_authority import RoleAuthority
from weighbridge.core.errors import ChipError, OwnCredentialsError, ProverError
from weighbridge.rpc import endpoints
from weighbridge.rpc.own_credentials import put_list

HEAD = "/weighbridge.v1.ChipService/GetHead"


class Chip(chip_pb2_grpc.ChipServiceServicer):
    """Answers, and remembers what it was told."""

    def __init__(self) -> None:
        self.heard = list[bytes]()

    def GetHead(self, request: chip_pb2.GetHeadRequest, context: grpc.ServicerContext) -> chip_pb2.GetHeadResponse:
        self.heard.append(request.nonce)
        return chip_pb2.GetHeadResponse(token=b"token")


class Site:
    """An authority, two servers of which one's key was stolen, and a caller."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.ca, self.path, self._stack = root / "ca", root / "caller", stack
        CertificateAuthority.create("Station").save(self.ca)
        self.issue("verifier", "v").save(self.path)
        self.good, self.stolen = Chip(), Chip()
        self.good_address = self.serve(self.issue("chip", "good"), self.good)
        self.stolen_address = self.serve(self.issue("chip", "stolen"), self.stolen)
        self.caller = Credentials.load(self.path)

    def issue(self, role: str, name: str, **options: Any) -> Credentials:
        with RoleAuthority.opened(self.ca) as authority:
            return authority.issue(role, name, **options)

    def serve(self, credentials: Credentials, chip: Chip) -> str:
        server, address = endpoints.server(credentials, allow={HEAD: {"verifier"}})
        chip_pb2_grpc.add_ChipServiceServicer_to_server(chip, server)  # type: ignore[no-untyped-call]
        server.start()
        self._stack.callback(lambda: server.stop(0).wait())
        return address

    def revoke(self) -> None:
        """The authority does; the caller hears of it by `put_list`."""
        with RoleAuthority.opened(self.ca) as authority:
            authority.revoke_name("chip", "stolen")

    def told(self) -> None:
        put_list(self.path, self.list)

    @property
    def list(self) -> bytes:
        return (self.ca / credential_files.REVOCATIONS).read_bytes()

    def head(self, address: str, caller: Credentials | None = None) -> bytes:
        with endpoints.channel(address, caller or self.caller, "chip") as channel:
            stub = chip_pb2_grpc.ChipServiceStub(channel)  # type: ignore[no-untyped-call]
            return bytes(
                endpoints.call(stub.GetHead, chip_pb2.GetHeadRequest(nonce=b"fresh nonce"), deadline_s=5).token
            )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def test_a_server_with_a_revoked_certificate_is_told_nothing(site: Site) -> None:
    site.revoke()
    assert site.head(site.stolen_address) == b"token"  # the caller has not heard of it
    site.told()
    with pytest.raises(ChipError, match="chip stolen is revoked") as caught:
        site.head(site.stolen_address)
    assert caught.value.reason == "chip.unreachable"
    assert len(site.stolen.heard) == 1
    assert site.head(site.good_address) == b"token"


@contextmanager
def in_the_way(*addresses: str) -> Iterator[str]:
    """Who decides where each connection leads: to these addresses in turn, to the last one from then on."""
    listener, ways = socket.create_server(("127.0.0.1", 0)), list(addresses)

    def forward(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                host, port = (ways.pop(0) if len(ways) > 1 else ways[0]).split(":")
                server = socket.create_connection((host, int(port)))
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=forward, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def test_a_thief_in_the_way_gains_nothing_by_showing_the_true_certificate_first(site: Site) -> None:
    site.revoke()
    site.told()
    with in_the_way(site.good_address, site.stolen_address) as address, pytest.raises(ChipError):
        site.head(address)
    with in_the_way(site.stolen_address, site.good_address) as address, pytest.raises(ChipError, match="revoked"):
        site.head(address)
    assert site.stolen.heard == []
    with in_the_way(site.good_address) as address:
        assert site.head(address) == b"token"


def test_what_is_no_server_of_the_role_is_unreachable_as_before(site: Site) -> None:
    site.revoke()
    site.told()
    rival = CertificateAuthority.create("Station").issue_role("chip", "rival")
    late = site.issue("chip", "late", lifetime=datetime.timedelta(seconds=2))
    addresses = [site.serve(each, Chip()) for each in (late, rival, site.issue("operator", "o"))]
    assert site.head(addresses[0]) == b"token"
    threading.Event().wait(2)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        addresses.append(f"127.0.0.1:{closed.getsockname()[1]}")
    for address in (*addresses, "nowhere.invalid:1", "no address", "localhost:99999999"):
        with pytest.raises(ChipError) as caught:
            site.head(address)
        assert caught.value.reason == "chip.unreachable"
        with pytest.raises(ProverError) as other, ProverClient(address, site.caller) as client:
            list(client.pieces("a" * 64))
        assert other.value.reason == "prover.unreachable"


def test_without_a_list_to_rely_on_nobody_is_called(site: Site) -> None:
    root = CertificateAuthority.load(site.ca)
    good, before = site.list, len(site.good.heard)
    for why, bad in (
        ("ended", revocation.signed(root.certificate, root.key, {}, lifetime=datetime.timedelta(seconds=0))),
        ("not signed by", CertificateAuthority.create("Station").revocations),
        ("This is no list", good[:-100]),
        ("There is no list", b""),
    ):
        credential_files.write_files(site.path, {credential_files.REVOCATIONS: bad})
        with pytest.raises(OwnCredentialsError, match=why):
            site.head(site.good_address)
    assert len(site.good.heard) == before
    credential_files.write_files(site.path, {credential_files.REVOCATIONS: good})
    assert site.head(site.good_address) == b"token"


def test_an_older_list_from_a_backup_brings_no_server_back(site: Site) -> None:
    old = site.list
    site.revoke()
    site.told()
    credential_files.write_files(site.path, {credential_files.REVOCATIONS: old})
    for caller in (site.caller, Credentials.load(site.path)):
        with pytest.raises(OwnCredentialsError, match="but one with"):
            site.head(site.stolen_address, caller)
    assert site.stolen.heard == []


def test_a_renewed_server_is_known_at_the_next_connection(site: Site, tmp_path: Path) -> None:
    site.revoke()
    site.told()
    home = tmp_path / "renewed"
    site.issue("chip", "r").save(home)
    address = site.serve(Credentials.load(home), Chip())
    assert site.head(address) == b"token"
    with RoleAuthority.opened(site.ca) as authority:
        credential_files.write_files(
            home, {"certificate.pem": authority.renew((home / "certificate.pem").read_bytes())}
        )
    assert site.head(address) == b"token"
