"""What the tests of running chips share: a station's certificates, a chip in its own process, and a Verifier's eyes."""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firmware_sim import ChipProcess
from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc
from weighbridge.attest import tokens
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.core.digests import Leaf
from weighbridge.rpc import endpoints


@dataclass
class ChipStation:
    """Authorities on disk, as one installation has them."""

    path: Path
    manufacturer: CertificateAuthority
    authority: CertificateAuthority

    @classmethod
    def create(cls, path: Path) -> "ChipStation":
        station = cls(path, CertificateAuthority.create("Manufacturer"), CertificateAuthority.create("Station"))
        station.manufacturer.save(path / "manufacturer")
        station.authority.issue_role("chip", "chip").save(path / "credentials")
        return station

    def chip(self, name: str = "chip", **options: Any) -> ChipProcess:
        """A chip that is not started yet; provisioned at its first start."""
        return ChipProcess(
            self.path / name, self.path / "credentials", manufacturer=self.path / "manufacturer", **options
        )

    def verifier(self) -> Credentials:
        return self.authority.issue_role("verifier", "verifier")

    def log(self, chip: ChipProcess) -> list[tokens.Token]:
        """Reads and verifies everything, as a Verifier does."""
        nonce = secrets.token_bytes(32)
        with endpoints.channel(chip.address, self.verifier(), "chip") as channel:
            stub = chip_pb2_grpc.ChipServiceStub(channel)
            data = endpoints.call(stub.GetHead, chip_pb2.GetHeadRequest(nonce=nonce)).token
            head = tokens.verify(data, self.manufacturer.certificate).token
            assert head.nonce == nonce
            request = chip_pb2.ListEntriesRequest(start=0, end=int(head.body["size"]))
            entries = [each.token for each in endpoints.stream(stub.ListEntries, request)]
        assert tokens.entry_digest(entries[-1]) == head.body["last"]
        return [each.token for each in tokens.verify_log(entries, self.manufacturer.certificate)]

    def open(self, chip: ChipProcess, index: int) -> tuple[bytes, list[Leaf]]:
        """Opens a snapshot."""
        with endpoints.channel(chip.address, self.verifier(), "chip") as channel:
            stub = chip_pb2_grpc.ChipServiceStub(channel)
            first, *rest = endpoints.stream(stub.OpenSnapshot, chip_pb2.OpenSnapshotRequest(index=index))
        return first.salt, [(leaf.bytes, leaf.digest) for message in rest for leaf in message.leaves]
