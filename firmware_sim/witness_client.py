"""Reports a chip's log to the Verifier's witness, and hands its cosignatures to the firmware.

Entries are durable before anything is reported, so whatever happens to the connection, nothing is lost: the chip tries
again for as long as it runs, and at the next boot. A workload that has waited for longer than the chip's patience gets
an error in place of an answer and may end in good order; no kernel runs until the chip has what it waits for.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from grpc import Channel

from firmware_sim.firmware import Firmware
from protos.weighbridge.v1 import witness_pb2, witness_pb2_grpc
from weighbridge.attest.identity import Credentials
from weighbridge.attest.peers import peer
from weighbridge.core.errors import OwnCredentialsError, WeighbridgeError
from weighbridge.rpc import endpoints

REPORT_SECONDS = 120.0
ENTRIES_BYTES = 1 << 20
_FIRST_RETRY_S, _LAST_RETRY_S = 0.2, 10.0

_log = logging.getLogger(__name__)


class Reporter:
    """Reports whenever the firmware has something that is due, in a thread of its own."""

    def __init__(self, firmware: Firmware, address: str, credentials: Credentials) -> None:
        """Prepares the thread.

        Args:
            firmware: Whose log to report.
            address: `host:port` of the Verifier's WitnessService.
            credentials: The chip's.

        Raises:
            IdentityError: They do not name the chip, so no witness would listen (`identity.ueid`).
        """
        peer(credentials.certificate).check_speaks_for(firmware.device.ueid)
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
            except (WeighbridgeError, OwnCredentialsError) as error:
                _log.warning("the witness does not acknowledge: %s", error)
                self._stopped.wait(retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)

    def report(self) -> None:
        """Reports everything that the witness does not hold, and takes in its cosignature.

        Raises:
            WeighbridgeError: The witness does not answer, refuses, or answers with a false cosignature.
        """
        with endpoints.channel(self._address, self._credentials, "verifier") as channel:
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
    known = endpoints.call(stub.GetWitnessed, witness_pb2.GetWitnessedRequest(ueid=ueid), deadline_s=REPORT_SECONDS)
    if known.checkpoint:
        # The answer to an earlier report may have been lost. The time in that counts, so it comes before a later one.
        with contextlib.suppress(WeighbridgeError):  # A chip may trust another witness than it reports to.
            firmware.add_cosignature(bytes(known.checkpoint))
    pieces = _pieces(firmware, int(known.size), bytes(known.nonce))
    answer = endpoints.call(stub.AddCheckpoint, pieces, deadline_s=REPORT_SECONDS)
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
