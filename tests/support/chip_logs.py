"""Chip logs for tests, signed by a real device key, honest unless a test tampers with them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cbor2
from cryptography.x509 import Certificate

from firmware_sim.device import Device, boot, provision
from verifier.model.facts import Anchor, Entry, LogFacts
from verifier.model.sessions import ATTACHED, DETACHED
from verifier.registry import Chip
from weighbridge.attest.hidden_fields import hide
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tlog import LOG, Checkpoint, Note, NoteSigner, origin
from weighbridge.attest.tokens import GENESIS, Token, Value, Verified, decode_claims, entry_digest, sign, verify
from weighbridge.attest.work import NONE, Work
from weighbridge.core import merkle
from weighbridge.core.digests import Leaf, salt_digest, snapshot_root
from weighbridge.core.errors import WeighbridgeError

SALT = bytes(range(32))
EARLIER_BOOT = ("salt_digest", "rate_milli", "hold", "reporting", "witness")
"""What the boot entries of the earliest firmware say."""


def make_device(directory: Path, manufacturer: CertificateAuthority) -> Device:
    """Provisions and boots a device."""
    provision(directory, manufacturer)
    return boot(directory)


@dataclass
class LogBuilder:
    """Writes a log as a chip would; `entries` are the signed bytes.

    Attributes:
        hiding: Whether entries hide what those of a confidential boot hide; `openings` open them.
    """

    device: Device
    entries: list[bytes] = field(default_factory=list)
    boot_count: int = 0
    boot_seed: bytes = b""
    uptime_ms: int = 0
    time_ms: int = 1_700_000_000_000
    rate_milli: int = 1000
    options: dict[str, Value] = field(default_factory=dict)
    work: Work | None = NONE
    before: Work = NONE
    hiding: bool = False
    openings: dict[int, bytes] = field(default_factory=dict)

    def token(self, kind: Any, body: dict[str, Value], nonce: bytes | None = None) -> Token:
        """The next token, unsigned."""
        return Token(
            kind=kind,
            ueid=self.device.ueid,
            nonce=nonce,
            index=len(self.entries),
            previous=entry_digest(self.entries[-1]) if self.entries else GENESIS,
            boot_count=self.boot_count,
            boot_seed=self.boot_seed,
            uptime_ms=self.uptime_ms,
            time_ms=self.time_ms,
            hwmodel=self.device.hwmodel,
            firmware_version=self.device.tcb.version,
            debug=self.device.tcb.mode == "debug",
            body=body,
            work=self.work,
        )

    def append(self, token: Token) -> int:
        """Signs and appends a token; returns its index."""
        if self.hiding:
            token, self.openings[token.index] = hide(token)
        self.entries.append(sign(token, self.device.key, self.device.chain))
        self.uptime_ms += 1000
        self.time_ms += 1000
        return len(self.entries) - 1

    def boot(self, *, unserved: bool = False) -> LogBuilder:
        """Logs a boot; `unserved`: an interrupt stood when the power went."""
        self.boot_count += 1
        self.boot_seed = secrets.token_bytes(32)
        self.uptime_ms = 0
        self.before = self.work or NONE
        body: dict[str, Value] = {
            "salt_digest": salt_digest(SALT),
            "rate_milli": self.rate_milli,
            "hold": 256,
            "clock_milli": 1000,
            "forced": False,
            "reporting": "log",
            "witness": bytes(32),
            "unserved": unserved,
            "confidential": self.hiding,
        }
        self.append(self.token("boot", body | self.options))
        return self

    def attach(self) -> LogBuilder:
        """Logs that a workload is attached."""
        self.before = self.work or NONE
        self.event(ATTACHED, bytes(32))
        return self

    def detach(self, **done: int) -> LogBuilder:
        """Logs that the workload has left, once it has done more."""
        self.does(**done).event(DETACHED, bytes(32))
        return self

    def does(self, **done: int) -> LogBuilder:
        """Has the chip work before its next entry."""
        self.work = (self.work or NONE) + Work(**done)
        return self

    def event(self, name: str, digest: bytes) -> int:
        """Logs an event."""
        return self.append(self.token("event", {"name": name, "digest": digest}))

    def snapshot(self, leaves: Sequence[Leaf], **claims: Value) -> int:
        """Logs a snapshot of storages; `claims` replace what would be claimed at step 1, operation 4."""
        body: dict[str, Value] = {
            "root": snapshot_root(leaves, SALT),
            "leaves": len(leaves),
            "bytes": sum(size for size, _ in leaves),
            "weights_root": snapshot_root([], SALT),
            "weights_bytes": 0,
            "salt_digest": salt_digest(SALT),
            "head": bytes(32),
            "running": bytes(32),
            "step": 1,
            "op": 4,
            "safepoint": True,
            "held": 0,
            "kernels": 10,
            "flops": 1000,
            "stall_us": 5,
            "unobserved": 6,
        }
        body |= claims
        if self.work is not None:
            # What it says of the workload is so: it is another one if that is less than before.
            kernels, flops = int(body["kernels"]), int(body["flops"])
            done = self.work - self.before
            if kernels < done.kernels or flops < done.flops:
                self.attach()
                done = NONE
            self.does(kernels=kernels - done.kernels, flops=flops - done.flops)
        return self.append(self.token("snapshot", body))

    def head(self, nonce: bytes, **changes: Value) -> bytes:
        """Returns a signed head over a nonce."""
        body: dict[str, Value] = {
            "size": len(self.entries),
            "last": entry_digest(self.entries[-1]) if self.entries else GENESIS,
            "root": merkle.root([merkle.leaf_hash(entry) for entry in self.entries]),
            "log_key": self.log_signer.key.public,
            "counter": len(self.entries),
        }
        token = self.token("head", body | changes, nonce)
        if self.hiding:
            token = replace(token, work=None)
        return sign(token, self.device.key, self.device.chain)

    @property
    def log_signer(self) -> NoteSigner:
        """The key that signs checkpoints."""
        return NoteSigner(origin(self.device.ueid), LOG, b"log key of tests".ljust(32))

    def checkpoint(self) -> bytes:
        """The signed checkpoint over all entries."""
        root = merkle.root([merkle.leaf_hash(entry) for entry in self.entries])
        text = Checkpoint(origin(self.device.ueid), len(self.entries), root).text
        return Note(text, (self.log_signer.sign(text),)).encode()

    def resign(self, index: int, **changes: Any) -> None:
        """Replaces an entry by one that the same device signs with other claims, as an altered firmware could."""
        token = replace(_parse(self.entries[index]), **changes)
        self.entries[index] = sign(token, self.device.key, self.device.chain)


def _parse(data: bytes) -> Token:
    """The claims of a token, unverified."""
    return decode_claims(cbor2.loads(data).value.value[2])


def attempt(data: bytes, root: Certificate) -> Verified | WeighbridgeError:
    """Verifies a token, or returns why it does not."""
    try:
        return verify(data, root)
    except WeighbridgeError as error:
        return error


def anchor(log: LogBuilder, asked_ms: int | None = None) -> Anchor:
    """A head that a Verifier has asked for now, by default at the chip's own time."""
    data, now = log.head(b"before that"), log.time_ms if asked_ms is None else asked_ms
    return Anchor(data=data, token=_parse(data), asked_ms=now, read_ms=now)


def facts(
    log: LogBuilder,
    root: Certificate,
    *,
    head: bytes | None = None,
    chip: Chip | None = None,
    nonce: bytes = b"n" * 32,
    anchors: Sequence[Anchor] = (),
    now_ms: int = 0,
) -> LogFacts:
    """What an inspection would have read of this log, at a time of the Verifier's if it looks at clocks."""
    return LogFacts(
        chip=chip or Chip(ueid=log.device.ueid, address="localhost:1"),
        nonce=nonce,
        head=attempt(head if head is not None else log.head(nonce), root),
        entries=[Entry(data=data, digest=entry_digest(data), verified=attempt(data, root)) for data in log.entries],
        anchors=list(anchors),
        asked_ms=now_ms,
        read_ms=now_ms,
    )
