"""Answers a Verifier who replays one cell of a job: with results of collectives, and with opened chunks of them.

Nothing of it is stored: every request replays the job (`prover.keeping.collective_replay`), one request at a time,
because the switches of numerics belong to the whole process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prover.keeping.archive import OPEN, Archive, Declared
from prover.keeping.collective_replay import cell_results, open_chunks
from weighbridge.core.errors import TranscriptError, UsageError
from weighbridge.execution.collective_openings import Opening, Target
from weighbridge.execution.given_terms import MAX_OPENINGS
from weighbridge.transcript.job_record import RECORD, rank_name

PIECE = 1 << 20
"""Bytes of one piece of a file of results on the wire, at most."""
_WAIT_SECONDS = 0.5


class Cells:
    """Answers for the jobs of one archive; safe to use from several threads."""

    def __init__(self, archive: Archive, device: str = "cpu") -> None:
        """Answers from `archive`, and replays on a torch device."""
        self._archive, self._device = archive, device
        self._turn = threading.Lock()

    def results(
        self, transcript_id: str, ranks: Sequence[str], steps: tuple[int, int], going: Callable[[], bool]
    ) -> Iterator[bytes]:
        """Yields a file with the results of a cell's collectives in pieces, for `execution.given_results`.

        Args:
            transcript_id: The transcript of the cell's rank.
            ranks: Those of all ranks of the job, by rank.
            steps: (first, last + 1) of the cell.
            going: Whether the caller still waits; asked at every step.

        Raises:
            TranscriptError: A transcript is not declared, or is not that of its rank.
            UsageError: There are no such steps, or the job does not replay.
        """
        with self._job(transcript_id, ranks) as (path, rank):
            out = path.with_name("results")
            with self._alone(going):
                cell_results(path, rank, steps, out, device=self._device, say=_ending(going))
            with out.open("rb") as file:
                while piece := file.read(PIECE):
                    yield piece

    def openings(
        self, transcript_id: str, ranks: Sequence[str], targets: Sequence[Target], going: Callable[[], bool]
    ) -> Iterator[Opening]:
        """Yields opened chunks of the results of a rank's collectives, in the order of `targets`.

        Args:
            transcript_id: The transcript of the rank.
            ranks: Those of all ranks of the job, by rank.
            targets: The chunks, none twice.
            going: As for `results`.

        Raises:
            TranscriptError: As `results`.
            UsageError: There are no such chunks, or the job does not replay.
        """
        if len(targets) > MAX_OPENINGS or len(set(targets)) < len(targets):
            raise UsageError(f"ask for at most {MAX_OPENINGS} chunks, and for none twice")
        with self._job(transcript_id, ranks) as (path, rank):
            with self._alone(going):
                opened = open_chunks(path, rank, targets, device=self._device, say=_ending(going))
            yield from opened

    @contextmanager
    def _alone(self, going: Callable[[], bool]) -> Iterator[None]:
        while not self._turn.acquire(timeout=_WAIT_SECONDS):
            _ending(going)({})
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def _job(self, transcript_id: str, ranks: Sequence[str]) -> Iterator[tuple[Path, int]]:
        """Puts the transcripts of a job together by links; yields the directory, and the rank of a transcript."""
        declared = [self._archive.find(each) for each in ranks]
        if transcript_id not in ranks or not _one_job(declared):
            raise TranscriptError(
                "these are not the transcripts of all ranks of one job, by rank; take them from Explain",
                code="job.incomplete",
            )
        coordinate = declared[0].coordinate
        assert coordinate is not None, "_one_job says so"
        folder = self._archive.root / OPEN
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="job-", dir=folder) as scratch:
            path = Path(scratch) / "job"
            try:
                path.mkdir()
                (path / RECORD).write_bytes(coordinate.job.encode())
                for rank, each in enumerate(declared):
                    shutil.copytree(each.path, path / rank_name(rank), copy_function=os.link)
            except OSError as error:
                raise TranscriptError(f"the job cannot be put together ({error.strerror}); ask again later") from None
            yield path, ranks.index(transcript_id)


def _one_job(declared: Sequence[Declared]) -> bool:
    coordinates = [each.coordinate for each in declared]
    first = coordinates[0] if coordinates else None
    return (
        first is not None
        and len(coordinates) == first.job.ranks
        and all(
            each is not None and (each.job, each.rank) == (first.job, rank) for rank, each in enumerate(coordinates)
        )
    )


def _ending(going: Callable[[], bool]) -> Callable[[dict[str, Any]], None]:
    """Returns what ends a replay at its next step once its caller does not wait for the outcome."""

    def say(_: dict[str, Any]) -> None:
        if not going():
            raise UsageError("the caller has gone; ask again")

    return say
