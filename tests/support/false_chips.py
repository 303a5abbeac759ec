# ruff: noqa: N802 (gRPC names the methods)
"""Chips that show what they like: logs made to order, under real device keys, from a real service over mutual TLS.

Each has a device that the station's manufacturer provisioned and a boot ROM that measured its firmware; what is false
is what the firmware of such a chip, or the holder of its key, signs and shows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.chip_logs import LogBuilder
from support.station import Station

from firmware_sim.boot import IDEVID, SECRET, identity_key
from firmware_sim.device import Device, boot, provision
from firmware_sim.kept_openings import SALT_SIZE
from firmware_sim.nvlog import NonVolatileLog
from firmware_sim.service import ALLOW
from firmware_sim.snapshot_report import unpack_leaves
from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc
from verifier.registry import Chip
from weighbridge.attest.certificates import certificate_builder
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tcb import TcbInfo
from weighbridge.attest.tlog import Checkpoint, Note, origin
from weighbridge.attest.tokens import Token, Value, entry_digest, read_own, sign
from weighbridge.attest.work import NONE, Work
from weighbridge.core import merkle
from weighbridge.core.digests import Leaf, salt_digest, snapshot_root
from weighbridge.core.errors import UsageError
from weighbridge.rpc import endpoints

LEAF_BYTES = 40


@dataclass(frozen=True)
class Opened:
    """What a chip opens of one snapshot."""

    salt: bytes
    leaves: list[Leaf]
    weights: list[Leaf]

    def claims(self) -> dict[str, Value]:
        """What a snapshot's token says of such storages."""
        return {
            "root": snapshot_root(self.leaves, self.salt),
            "leaves": len(self.leaves),
            "bytes": sum(size for size, _ in self.leaves),
            "weights_root": snapshot_root(self.weights, self.salt),
            "weights_bytes": sum(size for size, _ in self.weights),
            "salt_digest": salt_digest(self.salt),
        }


@dataclass
class Shown:
    """What one chip shows; without changes, an honest chip's log.

    Attributes:
        log: What it signs its heads and checkpoints over.
        entries: What it lists, if not the entries of `log`.
        head: Makes its head token over a nonce, if not `log`.
        claimed: Entries that it claims to have, if not those that it has.
        opened: What it opens of its snapshots, by index.
    """

    log: LogBuilder
    entries: list[bytes] | None = None
    head: Callable[[bytes], bytes] | None = None
    claimed: int | None = None
    opened: dict[int, Opened] = field(default_factory=dict)

    def rewrite(self, index: int, change: Callable[[Token], Token]) -> None:
        """Signs an entry with other claims, and all later ones so that they continue it."""
        entries, device = self.log.entries, self.log.device
        for place in range(index, len(entries)):
            token = read_own(entries[place])
            token = change(token) if place == index else token
            previous = entry_digest(entries[place - 1]) if place else token.previous
            entries[place] = sign(replace(token, previous=previous), device.key, device.chain)

    def claim(self, index: int, **claims: Value) -> None:
        """As `rewrite`: other claims in the body of an entry."""
        self.rewrite(index, lambda token: replace(token, body={**token.body, **claims}))

    def worked(self, index: int, more: Work) -> None:
        """As a chip does that worked more before a snapshot: its counters say so there and from there on."""
        body = read_own(self.log.entries[index]).body
        self.claim(index, kernels=int(body["kernels"]) + more.kernels, flops=int(body["flops"]) + more.flops)
        for place in range(index, len(self.log.entries)):
            self.rewrite(place, lambda token: replace(token, work=(token.work or NONE) + more))
        self.log.work = (self.log.work or NONE) + more

    def find(self, kind: str) -> list[int]:
        """The indices of the entries of a kind."""
        return [index for index, entry in enumerate(self.log.entries) if read_own(entry).kind == kind]


class _Servicer(chip_pb2_grpc.ChipServiceServicer):
    """ChipService over what each chip shows."""

    def __init__(self, shown: Mapping[bytes, Shown]) -> None:
        self._shown = shown

    def _chosen(self, context: grpc.ServicerContext) -> Shown:
        (ueid,) = (value for key, value in context.invocation_metadata() if key == endpoints.CHIP)
        assert isinstance(ueid, bytes)
        return self._shown[ueid]

    def GetCheckpoint(self, request: Any, context: grpc.ServicerContext) -> Any:
        shown = self._chosen(context)
        if shown.claimed is None:
            head = shown.head or shown.log.head
            return chip_pb2.GetCheckpointResponse(checkpoint=shown.log.checkpoint(), token=head(request.nonce))
        log, size = shown.log, shown.claimed
        root = merkle.root([merkle.leaf_hash(entry) for entry in log.entries])
        text = Checkpoint(origin(log.device.ueid), size, root).text
        note = Note(text, (log.log_signer.sign(text),)).encode()
        return chip_pb2.GetCheckpointResponse(checkpoint=note, token=log.head(request.nonce, size=size, counter=size))

    def GetConsistencyProof(self, request: Any, context: grpc.ServicerContext) -> Any:
        leaves = [merkle.leaf_hash(entry) for entry in self._chosen(context).log.entries]
        return chip_pb2.GetConsistencyProofResponse(hashes=merkle.consistency_proof(leaves, request.old_size))

    def ListEntries(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        shown = self._chosen(context)
        entries = shown.log.entries if shown.entries is None else shown.entries
        for index, entry in list(enumerate(entries))[request.start : request.end]:
            yield chip_pb2.ListEntriesResponse(index=index, token=entry)

    def OpenSnapshot(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        opened = self._chosen(context).opened.get(request.index)
        if opened is None:
            raise UsageError(f"Entry {request.index} is no snapshot.")
        yield chip_pb2.OpenSnapshotResponse(salt=opened.salt)
        leaves, weights = (
            [chip_pb2.Leaf(bytes=size, digest=digest) for size, digest in each]
            for each in (opened.leaves, opened.weights)
        )
        yield chip_pb2.OpenSnapshotResponse(leaves=leaves, weights=weights)


class FalseChips:
    """A service of false chips for a station; use as a context manager."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._shown: dict[bytes, Shown] = {}

    def __enter__(self) -> Self:
        credentials = self._station.authority.issue_role("chip", "false")
        self._server, self._address = endpoints.server(credentials, allow=ALLOW)
        chip_pb2_grpc.add_ChipServiceServicer_to_server(_Servicer(self._shown), self._server)  # type: ignore[no-untyped-call]
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(0).wait()

    def directory(self, name: str) -> Path:
        """Where a chip's secret lies."""
        return self._station.root / "chips" / name

    def make(self, name: str, *, manufacturer: CertificateAuthority | None = None, image: bytes | None = None) -> Shown:
        """Provisions and boots a device, with an honest log of one boot, and serves it."""
        if manufacturer is None:
            manufacturer, image = self._station.manufacturer, image or self._station.image
        provision(self.directory(name), manufacturer, image=image)
        return self.show(name, Shown(LogBuilder(boot(self.directory(name)), time_ms=int(time.time() * 1000)).boot()))

    def shown(self, name: str) -> Shown:
        """What a chip shows."""
        return self._shown[self._station.ueids[name]]

    def show(self, name: str, shown: Shown, *, prover: str = "", ueid: bytes | None = None, address: str = "") -> Shown:
        """Registers a chip, by default the one whose log is shown, at this service or at another address."""
        ueid = ueid or shown.log.device.ueid
        self._shown[ueid] = shown
        self._station.ueids[name] = ueid
        self._station.registry.register(
            Chip(ueid=ueid, address=address or self._address, prover_address=prover, site=name)
        )
        return shown


def taken(directory: Path, scratch: Path) -> Shown:
    """What a chip of `firmware_sim` has in its directory, in the hands of a party with its key."""
    shutil.copytree(directory / "nvram", scratch / "nvram")
    shutil.copy(directory / "counter", scratch / "counter")
    with NonVolatileLog(scratch) as log:
        entries = [log.read(index) for index in range(len(log))]
    newest, device = read_own(entries[-1]), boot(directory)
    builder = LogBuilder(
        device,
        entries,
        boot_count=newest.boot_count,
        boot_seed=newest.boot_seed,
        uptime_ms=newest.uptime_ms + 1000,
        time_ms=newest.time_ms + 1000,
        work=newest.work,
    )
    shown = Shown(builder)
    for index in shown.find("snapshot"):
        data = (directory / "snapshots" / f"{index:08d}.bin").read_bytes()
        salt, packed = data[:SALT_SIZE], data[SALT_SIZE:]
        end = LEAF_BYTES * int(read_own(entries[index]).body["leaves"])
        shown.opened[index] = Opened(salt, unpack_leaves(packed[:end]), unpack_leaves(packed[end:]))
    return shown


def attested(
    directory: Path, device: Device, *, key: ec.EllipticCurvePrivateKey | None = None, tcb: TcbInfo | None = None
) -> Device:
    """A device whose boot ROM certified another attestation key, or another firmware, than it should have."""
    identity = identity_key((directory / SECRET).read_bytes())
    idevid = x509.load_der_x509_certificate((directory / IDEVID).read_bytes())
    key, tcb = key or device.key, tcb or device.tcb
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "attestation key")])
    certificate = (
        certificate_builder(subject, idevid.subject, key.public_key(), authority=False)
        .add_extension(tcb.extension(), critical=False)
        .sign(identity, hashes.SHA384())
    )
    chain = (certificate.public_bytes(serialization.Encoding.DER), device.chain[1])
    return replace(device, key=key, chain=chain, tcb=tcb)
