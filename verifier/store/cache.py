"""Fetched transcripts, kept by identifier in a directory of the Verifier's.

What arrives is hostile until `open_confined` has verified it: paths are matched against one pattern, pieces must follow
one another, and everything is counted before it is written. A transcript appears only when it is whole. None of its
content but the manifest is decoded in this process. `verifier.store.cache_room` prunes what was used longest ago.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from verifier.store.cache_room import CELLS, JOB, PARTIAL, Budget, Room, StorageError
from weighbridge.core.digests import bytes_digest
from weighbridge.core.durable import sync
from weighbridge.core.errors import ReplayWorkerError, TranscriptError, WeighbridgeError
from weighbridge.execution.transcript_facts import OPENING, QUESTIONS, OpenedTranscript, open_confined
from weighbridge.execution.worker_process import Limits
from weighbridge.transcript.job_record import RECORD, SUPPLEMENTS, JobRecord, rank_name

_ID = re.compile(r"[0-9a-f]{64}")
_OBJECTS = "objects"

PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}){0,3}")
"""What a file of a transcript may be called."""


class Piece(Protocol):
    """One piece of one file, as in `FetchTranscriptResponse`."""

    path: str
    offset: int
    data: bytes
    last: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchLimits:
    """What the Verifier is willing to fetch.

    Attributes:
        total: Bytes of one transcript.
        files: Files of one transcript.
    """

    total: int = 256 << 30
    files: int = 100_000


class Cache:
    """Transcripts below one directory, one subdirectory each, named by identifier.

    Attributes:
        root: The directory.
        limits: What is accepted.
        room: How much it may hold, and what is in use.
        opening: What the worker that opens a transcript may use.
    """

    def __init__(
        self,
        root: str | Path,
        limits: FetchLimits | None = None,
        *,
        opening: Limits = OPENING,
        questions: Limits = QUESTIONS,
        budget: Budget | None = None,
        read_only: bool = False,
    ) -> None:
        """Creates the directory if needed and removes what an interrupted fetch left.

        Args:
            root: Directory that nothing else writes to.
            limits: What to accept.
            opening: What the worker that opens a transcript may use.
            questions: What a worker may use that is asked more about it later: whose batches or weights it compares.
            budget: What it may take of the disk; by default all of it.
            read_only: Whether it is another process's, which may be fetching into it now: then nothing is removed.
        """
        self.opening, self._questions = opening, questions
        self.root = self._root = Path(root)
        self.limits = self._limits = limits or FetchLimits()
        if not read_only:
            self._root.mkdir(parents=True, exist_ok=True)
            self._tidy()
        self.room = Room(self._root, budget or Budget())

    def _tidy(self) -> None:
        for pattern in (f"{PARTIAL}*", f"{JOB}*"):
            for left in self._root.glob(pattern):
                if left.is_file():
                    left.unlink()
                elif not left.name.endswith(CELLS):  # what Provers sent for cells may be needed again
                    shutil.rmtree(left, ignore_errors=True)

    def get(self, transcript_id: str, fetch: Iterable[Piece]) -> OpenedTranscript:
        """Returns a verified transcript, fetching it if it is not in the cache.

        Args:
            transcript_id: Hex digest of the manifest. A cached transcript is verified again.
            fetch: Its pieces; not touched if an intact copy is in the cache.

        Raises:
            TranscriptError: The pieces break a rule (`transcript.fetch.*`), or the transcript does not verify.
            WeighbridgeError: As `open_confined`.
            StorageError: It cannot be stored.
        """
        if not _ID.fullmatch(transcript_id):
            raise TranscriptError(
                "the Prover names a transcript by something that is no BLAKE3 digest", code="transcript.fetch.id"
            )
        place = self._root / transcript_id
        try:
            self.room.use(transcript_id)
            if place.is_dir():
                try:
                    return self._open(place, transcript_id)
                except ReplayWorkerError:
                    raise
                except WeighbridgeError:
                    # It was whole when it was fetched, so our own disk is to blame and not the Prover.
                    shutil.rmtree(place)
                    self.room.stored(transcript_id)
            with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=self._root, ignore_cleanup_errors=True) as name:
                partial = Path(name)
                self._receive(partial, fetch)
                transcript = self._open(partial, transcript_id)
                self.adopt(partial, transcript_id)
                transcript.path = place
                return transcript
        except StorageError:
            raise
        except OSError as error:
            raise _cannot_store(transcript_id, error) from None

    def has(self, transcript_id: str) -> bool:
        """Whether a transcript is here; not whether it is intact."""
        return bool(_ID.fullmatch(transcript_id)) and (self._root / transcript_id).is_dir()

    def find(self, transcript_id: str) -> OpenedTranscript | None:
        """Returns a transcript that is here, verified again; None if it is not here or not intact.

        Raises:
            StorageError: It cannot be written down that it is used.
        """
        if not self.has(transcript_id):
            return None
        try:
            self.room.use(transcript_id)
            return self._open(self._root / transcript_id, transcript_id)
        except WeighbridgeError:
            return None
        except OSError as error:
            raise _cannot_store(transcript_id, error) from None

    def adopt(self, directory: Path, transcript_id: str) -> None:
        """Moves a verified transcript to its place, durably; one that is there already stays.

        Args:
            directory: Where it lies now, on the same file system; afterwards it is gone.
            transcript_id: Hex digest of its manifest.

        Raises:
            OSError: It cannot be moved.
        """
        try:
            directory.rename(self._root / transcript_id)
        except OSError:
            if not self.has(transcript_id):
                raise
            shutil.rmtree(directory)  # it arrived another way in the meantime
        sync(self._root)
        self.room.stored(transcript_id)

    def job(self, record: JobRecord, transcripts: Sequence[OpenedTranscript]) -> Path:
        """Puts the transcripts of a job's ranks together as one directory, by links to the files that are here.

        Args:
            record: The job.
            transcripts: Of each rank, in their order, from this cache and verified.

        Returns:
            The directory, as `weighbridge.execution.job_replay.replay_job` reads it.

        Raises:
            StorageError: It cannot be stored.
        """
        identity = record.encode() + b"".join(bytes.fromhex(each.digest) for each in transcripts)
        place = self._root / f"{JOB}{bytes_digest(identity).hex()}"
        try:
            shutil.rmtree(place, ignore_errors=True)  # what was fetched again since is another file
            place.mkdir()
            (place / RECORD).write_bytes(record.encode())
            for rank, transcript in enumerate(transcripts):
                _link(transcript.path, place / rank_name(rank))
        except OSError as error:
            raise _cannot_store(place.name, error) from None
        return place

    def add_supplements(self, job: Path, transcripts: Sequence[OpenedTranscript]) -> None:
        """Puts the rounding logs that came for a job's ranks where its replay looks for them, by links.

        Args:
            job: What `job` returned.
            transcripts: As for `job`.

        Raises:
            StorageError: They cannot be stored.
        """
        try:
            for rank, transcript in enumerate(transcripts):
                place = job / (rank_name(rank) + SUPPLEMENTS)
                shutil.rmtree(place, ignore_errors=True)
                came = transcript.path.with_name(transcript.path.name + SUPPLEMENTS)
                if came.is_dir():
                    _link(came, place)
        except OSError as error:
            raise _cannot_store(job.name, error) from None

    def keep(self, data: bytes) -> bytes:
        """Keeps bytes under their digest, durably, and returns it (32 bytes).

        Raises:
            StorageError: They cannot be stored.
        """
        digest = bytes_digest(data)
        place = self._object(digest)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            descriptor, partial = tempfile.mkstemp(prefix=PARTIAL, dir=self._root)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, place)
            sync(place.parent)
        except OSError as error:
            raise _cannot_store(place.name, error) from None
        return digest

    def kept(self, digest: bytes) -> bytes:
        """Returns what `keep` was given.

        Raises:
            TranscriptError: It is not there any more, or was altered.
        """
        try:
            data = self._object(digest).read_bytes()
        except OSError as error:
            raise TranscriptError(f"{digest.hex()} is not in the cache directory ({error.strerror})") from None
        if bytes_digest(data) != digest:
            raise TranscriptError(f"{digest.hex()} in the cache directory was altered; check the Verifier's disk")
        return data

    def _object(self, digest: bytes) -> Path:
        return self._root / _OBJECTS / digest.hex()[:2] / digest.hex()

    def _open(self, place: Path, transcript_id: str) -> OpenedTranscript:
        transcript = open_confined(place, opening=self.opening, limits=self._questions)
        if transcript.digest != transcript_id:
            raise TranscriptError(
                "the Prover sent another transcript than it named; ask it again",
                code="transcript.fetch.id",
                expected=transcript_id,
                found=transcript.digest,
            )
        return transcript

    def _receive(self, root: Path, fetch: Iterable[Piece]) -> None:
        """Writes the pieces below `root`, which is empty."""
        total, seen = 0, set[str]()
        path, file = "", None
        try:
            for piece in fetch:
                total += len(piece.data)
                if total > self._limits.total or len(seen) > self._limits.files:
                    raise TranscriptError(
                        f"the transcript is larger than {self._limits.total} bytes or {self._limits.files} files; "
                        "raise the Verifier's limits if its size is plausible",
                        code="transcript.fetch.oversized",
                    )
                self.room.arriving(total, len(piece.data))
                if file is None:
                    path = piece.path
                    file = self._create(root, path, seen)
                if piece.path != path or piece.offset != file.tell():
                    raise TranscriptError(
                        "the pieces of a file did not come in order; ask the Prover to serve the transcript again",
                        code="transcript.fetch.order",
                    )
                file.write(piece.data)
                if piece.last:
                    file.close()
                    file = None
            if file is not None:
                raise TranscriptError(
                    f"{path} ended before its last piece; ask the Prover again", code="transcript.fetch.order"
                )
        finally:
            if file is not None:
                file.close()

    def _create(self, root: Path, path: str, seen: set[str]) -> IO[bytes]:
        if not PATH.fullmatch(path) or path in seen:
            raise TranscriptError(
                f"the Prover sent a file under the path {path[:100]!r}, which is not allowed or came twice",
                code="transcript.fetch.path",
            )
        seen.add(path)
        place = root / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            return place.open("xb")
        except (FileExistsError, NotADirectoryError):  # a file lies where a directory is needed, or the other way
            raise TranscriptError(
                f"the Prover sent {path[:100]!r} and a file in its way; treat its service as hostile",
                code="transcript.fetch.path",
            ) from None


def _link(source: Path, target: Path) -> None:
    """Shows the files of a directory in another place; times and modes of directories say nothing."""
    target.mkdir()
    for each in source.iterdir():
        if each.is_dir():
            _link(each, target / each.name)
        else:
            os.link(each, target / each.name)


def _cannot_store(path: str, error: OSError) -> StorageError:
    return StorageError(
        f"{path[:100]!r} cannot be stored ({error.strerror}); free space on the Verifier's disk, check its cache "
        "directory, and start the inspection again"
    )
