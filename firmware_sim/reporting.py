"""How a chip reports its log to the Verifier's witness, and what it waits for.

Two modes. In `log` the chip keeps its entries in the NVRAM until a Verifier reads them. In `wait` the workload resumes
after a snapshot only when the witness has acknowledged it, that is, has cosigned a checkpoint above it. In both, an
NVRAM without room for another entry stops the workload, and only what the witness has cosigned makes room.

Entries are durable before anything is reported, so whatever happens to the connection, nothing is lost: the chip tries
again for as long as it runs, and at the next boot. A workload that has waited for longer than the chip's patience gets
an error in place of an answer and may end in good order; no kernel runs until the chip has what it waits for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from grpc import Channel

from protos.weighbridge.v1 import witness_pb2, witness_pb2_grpc
from weighbridge import rpc
from weighbridge.errors import UsageError, WeighbridgeError
from weighbridge.identity import Credentials
from weighbridge.tlog import WITNESS, NoteKey, parse_key

if TYPE_CHECKING:
    from firmware_sim.firmware import Firmware

Mode = Literal["log", "wait"]

DEFAULT_PATIENCE_S = 600.0
NO_WITNESS = bytes(32)
"""What a boot entry names as the witness's key if the chip trusts none."""

REPORT_SECONDS = 120.0
ENTRIES_BYTES = 1 << 20
_FIRST_RETRY_S, _LAST_RETRY_S = 0.2, 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reporting:
    """How a chip reports.

    Attributes:
        mode: `log` or `wait`.
        witness: The key whose cosignatures the chip trusts; without one it never drops an entry.
        patience_s: Seconds on the host's clock after which a workload that waits is told so.
    """

    mode: Mode = "log"
    witness: NoteKey | None = None
    patience_s: float = DEFAULT_PATIENCE_S

    def __post_init__(self) -> None:
        """Checks that there is somebody to wait for.

        Raises:
            UsageError: The mode is `wait` without a witness, the key is no witness's, or the patience is negative.
        """
        if self.mode == "wait" and self.witness is None:
            raise UsageError("A chip that waits for a witness needs the witness's key; pass --witness-key.")
        if self.witness is not None and self.witness.type != WITNESS:
            raise UsageError("The witness's key must be one that makes cosignatures (type 4).")
        if not self.patience_s >= 0:
            raise UsageError("The patience must not be negative.")


class Reporter:
    """Reports whenever the firmware has something that is due, in a thread of its own."""

    def __init__(self, firmware: Firmware, address: str, credentials: Credentials) -> None:
        """Prepares the thread.

        Args:
            firmware: Whose log to report.
            address: `host:port` of the Verifier's WitnessService.
            credentials: The chip's.
        """
        self._firmware, self._address, self._credentials = firmware, address, credentials
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def start(self) -> None:
        """Begins to report."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the reports after the one in progress."""
        self._stopped.set()

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._stopped.is_set():
            if not self._firmware.wait_until_due(1.0):
                continue
            try:
                self.report()
                retry_s = _FIRST_RETRY_S
            except WeighbridgeError as error:
                _log.warning("the witness does not acknowledge: %s", error)
                self._stopped.wait(retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)

    def report(self) -> None:
        """Reports everything that the witness does not hold, and takes in its cosignature.

        Raises:
            WeighbridgeError: The witness does not answer, refuses, or answers with a false cosignature.
        """
        with rpc.channel(self._address, self._credentials, "verifier") as channel:
            report_over(channel, self._firmware)


def report_over(channel: Channel, firmware: Firmware) -> None:
    """Reports everything that the witness does not hold of one chip, and takes in its cosignature.

    Args:
        channel: To the Verifier; chips of one host may share it.
        firmware: Whose log to report.

    Raises:
        WeighbridgeError: The witness does not answer, refuses, or answers with a false cosignature.
    """
    ueid = firmware.device.ueid
    stub = witness_pb2_grpc.WitnessServiceStub(channel)  # type: ignore[no-untyped-call]
    known = rpc.call(stub.GetWitnessed, witness_pb2.GetWitnessedRequest(ueid=ueid), deadline_s=REPORT_SECONDS)
    pieces = _pieces(firmware, int(known.size), bytes(known.nonce))
    answer = rpc.call(stub.AddCheckpoint, pieces, deadline_s=REPORT_SECONDS)
    firmware.add_cosignature(bytes(answer.checkpoint))


def _pieces(firmware: Firmware, old_size: int, nonce: bytes) -> Iterator[witness_pb2.AddCheckpointRequest]:
    ueid = firmware.device.ueid
    checkpoint, token, size = firmware.checkpoint(nonce)
    start = min(old_size, size)  # A witness that knows a longer log shall see the shorter one, and judge.
    proof = firmware.consistency_proof(start, size)
    # What cannot be read is an error here, before anything is sent.
    entries = [entry for _, entry in firmware.entries(start, size)]
    yield witness_pb2.AddCheckpointRequest(ueid=ueid, checkpoint=checkpoint, token=token, proof=proof)
    piece: list[bytes] = []
    for entry in entries:
        if sum(map(len, piece)) + len(entry) > ENTRIES_BYTES:
            yield witness_pb2.AddCheckpointRequest(entries=piece)
            piece = []
        piece.append(entry)
    yield witness_pb2.AddCheckpointRequest(entries=piece)


def witness_key(path: Path | None) -> NoteKey | None:
    """Reads the file with the key of the witness that a chip is to trust; None for no file.

    Raises:
        WeighbridgeError: It cannot be read, or holds no key.
    """
    if path is None:
        return None
    try:
        return parse_key(path.read_text().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot read {path}; give the file with the witness's verifier key.") from error
