"""The log of a site's sealed workers: one line for each start, before it, each bound to the line before.

A nonce of either party that is in the log buys no further job. The attestation of a worker states the place and the
head of its line: a party that keeps attestations sees when two have one place, or when lines are gone. The log alone
does not show that, since a launcher whose host is hostile can begin it anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from weighbridge.attest.sealed_order import Order, SealedWorkerError
from weighbridge.core import durable
from weighbridge.core.bounded import decode_json
from weighbridge.core.digests import record_digest
from weighbridge.core.errors import FormatError

_DOMAIN = "sealed-start/1"
_LINE_LIMIT = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """One start of a worker.

    Attributes:
        index: Its place in the log, from 0.
        time: Seconds since 1970, by the clock of the launcher.
        order: Hex digest of the job's order.
        verifier_nonce: The Verifier's nonce, in hex.
        prover_nonce: The Prover's nonce, in hex.
        measurement: Of the image that was to be started, in hex.
        previous: Head of the line before, in hex; of the first line 64 zeros.
    """

    index: int
    time: int
    order: str
    verifier_nonce: str
    prover_nonce: str
    measurement: str
    previous: str

    @property
    def head(self) -> bytes:
        """Stands for this line and all before it (32 bytes)."""
        return record_digest(_DOMAIN, asdict(self))


def read_starts(path: Path) -> list[Start]:
    """Reads a log; a file that is not there is an empty one.

    Raises:
        SealedWorkerError: A line is malformed, or does not follow the one before (`sealed.starts`).
    """
    return _parsed(path.read_bytes()) if path.exists() else []


def append(path: Path, order: Order) -> Start:
    """Appends the start of a worker, durably; from here on the order's nonces are spent.

    Raises:
        SealedWorkerError: A nonce was used before (`sealed.nonce`), or the log is damaged (`sealed.starts`).
        OSError: The log cannot be written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        starts = _parsed(file.read())
        spent = {nonce for each in starts for nonce in (each.verifier_nonce, each.prover_nonce)}
        nonces = order.verifier_nonce.hex(), order.prover_nonce.hex()
        if not spent.isdisjoint(nonces) or nonces[0] == nonces[1]:
            raise SealedWorkerError("a nonce of this order was used before: order a new job", code="sealed.nonce")
        start = Start(
            index=len(starts), time=int(time.time()), order=order.digest.hex(), verifier_nonce=nonces[0],
            prover_nonce=nonces[1], measurement=order.measurement.hex(),
            previous=starts[-1].head.hex() if starts else "00" * 32,
        )  # fmt: skip
        file.write(_line(start))
        file.flush()
        os.fsync(file.fileno())
    durable.sync(path.parent)
    return start


def _line(start: Start) -> bytes:
    return json.dumps(asdict(start)).encode() + b"\n"


def _parsed(data: bytes) -> list[Start]:
    starts: list[Start] = []
    previous = "00" * 32
    for number, line in enumerate(data.splitlines(keepends=True)):
        try:
            found = Start(**decode_json(line)) if len(line) <= _LINE_LIMIT else None
        except (FormatError, TypeError):
            found = None
        if found is None or _line(found) != line or (found.index, found.previous) != (number, previous):
            raise SealedWorkerError(
                f"line {number + 1} of the log of starts is damaged, or does not follow the one before; "
                "restore the log, or begin a new one and say so to all parties",
                code="sealed.starts",
            )
        starts.append(found)
        previous = found.head.hex()
    return starts
