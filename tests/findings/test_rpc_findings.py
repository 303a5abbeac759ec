"""Each identifier of a call between services, alone: over mutual TLS, to a Verifier's process with small limits."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from support.console import command, refused
from support.station import service

from firmware_sim.device import builtin_image
from protos.weighbridge.v1 import verifier_pb2, verifier_pb2_grpc
from weighbridge.attest.firmware_image import FirmwareSigner
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.rpc import endpoints


@dataclass(frozen=True)
class House:
    """A Verifier that takes one call of each certificate, and no other for hours."""

    path: Path
    authority: CertificateAuthority
    address: str

    def operator(self, name: str) -> list[str | Path]:
        """Returns the options of a new operator, who has not called yet."""
        self.authority.issue_role("operator", name).save(self.path / name)
        return ["--verifier", self.address, "--credentials", self.path / name]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    path = tmp_path_factory.mktemp("house")
    authority, maker = CertificateAuthority.create("Station"), CertificateAuthority.create("Maker")
    authority.issue_role("verifier", "v").save(path / "verifier")
    (path / "maker.pem").write_bytes(maker.pem)
    (path / "firmware.img").write_bytes(FirmwareSigner.issue(maker).sign(builtin_image()))
    options = {
        "--db": path / "registry.db", "--credentials": path / "verifier", "--manufacturer": path / "maker.pem",
        "--firmware": path / "firmware.img", "--cache": path / "cache", "--calls-per-second": 1e-4, "--burst": 1,
    }  # fmt: skip
    arguments = [str(word) for pair in options.items() for word in pair]
    with service("serve verifier", arguments, path / "address") as address:
        yield House(path, authority, address)


@pytest.mark.finding("rpc.busy")
def test_who_calls_too_often(house: House) -> None:
    options = house.operator("often")
    assert command("inspect", "chips", *options)[0] == 0
    assert refused("inspect", "chips", *options) == "rpc.busy"


@pytest.mark.finding("rpc.invalid")
def test_a_request_that_breaks_a_rule_of_its_file(house: House) -> None:
    plan = ["--samples", "1", "--threshold", "1e21", "--chip-flops", "1e15", "--period", "30", "--rate", "-1"]
    assert refused("inspect", "start", *house.operator("invalid"), *plan) == "rpc.invalid"


@pytest.mark.finding("rpc.deadline")
def test_a_call_without_a_deadline(house: House) -> None:
    """No client of ours makes one, so this is another's."""
    with endpoints.channel(house.address, house.authority.issue_role("operator", "patient"), "verifier") as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListChips(verifier_pb2.ListChipsRequest())
    assert endpoints.from_rpc_error(caught.value).reason == "rpc.deadline"


@pytest.mark.finding("rpc.failed")
def test_a_verifier_that_lost_its_tables(house: House) -> None:
    """What happens in it does not concern its callers, so its answer does not say."""
    with closing(sqlite3.connect(house.path / "registry.db")) as database:
        database.execute("ALTER TABLE chips RENAME TO gone")
        try:
            assert refused("inspect", "chips", *house.operator("unlucky")) == "rpc.failed"
        finally:
            database.execute("ALTER TABLE gone RENAME TO chips")
    assert command("inspect", "chips", *house.operator("lucky"))[0] == 0
