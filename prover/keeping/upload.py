"""Hands a transcript to a Verifier that cannot fetch it: in calls that each may break, and each is gone on from.

Before every call the Verifier is asked what it has, so whichever side was killed, and whenever, only what had not
arrived is sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from protos.weighbridge.v1 import verifier_pb2, verifier_pb2_grpc
from weighbridge.attest.identity import Credentials
from weighbridge.core.errors import TranscriptError, WeighbridgeError
from weighbridge.rpc import endpoints
from weighbridge.rpc.busy import BusyError
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.writer import MANIFEST

CHUNK = 1 << 20
"""Bytes of one message."""
CALL_BYTES = 256 << 20
"""After so many bytes a call ends, so that the Verifier acknowledges them and can serve others."""
CALL_SECONDS = 4 * 3600.0
"""For one call; at the end of the last one the Verifier reads all of the transcript."""
PATIENCE_S, PAUSE_S = 120.0, 1.0
"""How long to try without getting any further, and how long to wait before each new try."""

Progress = Callable[[int, int], None]
"""Called with (bytes that are with the Verifier or on their way, bytes in all)."""


class VerifierUnreachableError(WeighbridgeError):
    """No Verifier answers at the address."""

    code = "rpc.verifier.unreachable"


@dataclass(frozen=True, slots=True)
class Upload:
    """What an upload came to.

    Attributes:
        id: The transcript's identifier.
        bytes: Bytes of all its files.
        files: How many these are.
        already: Bytes that were with the Verifier before.
    """

    id: str
    bytes: int
    files: int
    already: int


def upload(
    run: str | Path,
    address: str,
    credentials: Credentials,
    *,
    progress: Progress | None = None,
    patience_s: float = PATIENCE_S,
    call_bytes: int = CALL_BYTES,
) -> Upload:
    """Hands a transcript to a Verifier, and returns when it is whole and verified there.

    Args:
        run: The transcript's directory; a minimal export will do.
        address: The Verifier's `host:port`.
        credentials: The Prover's own.
        progress: Told how far it is.
        patience_s: How long to try without getting any further.
        call_bytes: After how many bytes to have them acknowledged.

    Raises:
        TranscriptError: The transcript does not verify here; nothing is sent then.
        VerifierUnreachableError: There is no answer for so long.
        WeighbridgeError: The Verifier refuses it.
    """
    transcript = Transcript.open(run)
    manifest = transcript.manifest
    names = [MANIFEST, *(path for path, _, _ in manifest.files)]
    files = {name: path.stat().st_size for name in names if (path := transcript.path / name).is_file()}
    total, already, known = sum(files.values()), -1, -1
    since = time.monotonic()
    while True:
        try:
            with endpoints.channel(address, credentials, "verifier", unreachable=VerifierUnreachableError) as channel:
                stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
                while True:
                    held = _status(stub, transcript.digest)
                    there = total if held is None else sum(held.values())
                    already = there if already < 0 else already
                    if there > known:
                        known, since = there, time.monotonic()
                    elif time.monotonic() - since > patience_s:
                        raise VerifierUnreachableError("the Verifier takes in nothing any more; see its log")
                    if progress is not None:
                        progress(there, total)
                    if held is None:
                        return Upload(transcript.digest, total, len(files), already)
                    outgoing = _Outgoing(transcript, files, held, call_bytes, progress)
                    _send(stub, outgoing)
        except WeighbridgeError as error:
            # Who left, or came between; anything else the Verifier says again.
            broken = isinstance(error, (VerifierUnreachableError, BusyError)) or error.reason == endpoints.RpcError.code
            # Who is busy is there: an upload whose connection broke at its end is being read, for instance.
            patience = CALL_SECONDS if isinstance(error, BusyError) else patience_s
            if not broken or time.monotonic() - since > patience:
                raise
        time.sleep(min(PAUSE_S, patience_s))


def _status(stub: verifier_pb2_grpc.VerifierServiceStub, identifier: str) -> dict[str, int] | None:
    """Returns how much of each file the Verifier has; None if the transcript is whole there."""
    request, held = verifier_pb2.UploadStatusRequest(id=identifier), dict[str, int]()
    for message in endpoints.stream(stub.UploadStatus, request, unreachable=VerifierUnreachableError):
        if message.complete:
            return None
        held.update({each.path: each.held for each in message.files})
    return held


def _send(stub: verifier_pb2_grpc.VerifierServiceStub, outgoing: _Outgoing) -> None:
    """Makes one call; when it returns, what it sent is on the Verifier's disk."""
    try:
        stub.UploadTranscript(outgoing.messages(), timeout=CALL_SECONDS)
    except grpc.RpcError as error:
        if outgoing.failure is not None:
            raise outgoing.failure from None
        raise endpoints.from_rpc_error(error, VerifierUnreachableError) from None


class _Outgoing:
    """What one call sends: what is missing, up to a number of bytes, and the end if that is all.

    Attributes:
        failure: Why a file could not be read, if one could not; gRPC hides it.
    """

    def __init__(
        self,
        transcript: Transcript,
        files: dict[str, int],
        held: dict[str, int],
        most: int,
        progress: Progress | None,
    ) -> None:
        self._transcript, self._files, self._held, self._most = transcript, files, held, most
        self._progress = progress
        self.failure: TranscriptError | None = None

    def messages(self) -> Iterator[verifier_pb2.UploadTranscriptRequest]:
        """Yields headers and bytes; the manifest first, on which the Verifier judges all others."""
        left, there, total = self._most, sum(self._held.values()), sum(self._files.values())
        for name, size in self._files.items():
            begin = self._held.get(name, 0)
            if begin >= size and name in self._held:
                continue  # of an empty file, too, the Verifier must hear
            if left <= 0:
                return
            header = verifier_pb2.UploadHeader(id=self._transcript.digest, path=name, size=size, offset=begin)
            yield verifier_pb2.UploadTranscriptRequest(file=header)
            much = min(size - begin, left)
            for data in self._read(name, begin, much):
                yield verifier_pb2.UploadTranscriptRequest(data=data)
                there += len(data)
                if self._progress is not None:
                    self._progress(there, total)
            left -= much
            if much < size - begin:
                return
        yield verifier_pb2.UploadTranscriptRequest(end=verifier_pb2.UploadEnd(id=self._transcript.digest))

    def _read(self, name: str, offset: int, size: int) -> Iterator[bytes]:
        try:
            with (self._transcript.path / name).open("rb") as file:
                file.seek(offset)
                while size > 0:
                    data = file.read(min(CHUNK, size))
                    if not data:
                        raise OSError(0, "it is shorter than it was")
                    size -= len(data)
                    yield data
        except OSError as error:
            self.failure = TranscriptError(
                f"{name} cannot be read any more ({error.strerror}); restore it and upload again",
                code="transcript.file.altered",
            )
            raise self.failure from None
