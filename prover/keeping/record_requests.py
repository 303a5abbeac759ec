"""Answers requests for single data records of declared transcripts, out of the batches that used them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prover.keeping.archive import Archive, not_declared
from weighbridge.core import merkle
from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.errors import TranscriptError, UsageError
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.record_opening import MAX_RECORDS, OpenedRecord, encode


def _content(opened: _Opened, record: int) -> bytes:
    """The record out of its batch: a row of every tensor, or all of a batch that is one record."""
    step, row = opened.places[record]
    batch = opened.transcript.batch(step)
    rows = {t.shape[0] if t.dim() else -1 for t in batch.values()}
    alone = rows != {len(opened.transcript.step(step).records)}
    return encode(batch if alone else {name: t[row] for name, t in batch.items()})


@dataclass(slots=True)
class _Opened:
    transcript: Transcript
    hashes: list[bytes]
    places: dict[int, tuple[int, int]]


class Records:
    """Answers from the transcripts of one archive; safe to use from several threads. The last one is kept open."""

    def __init__(self, archive: Archive) -> None:
        """Answers from `archive`."""
        self._archive = archive
        self._turn = threading.Lock()
        self._last: tuple[Path, str, _Opened] | None = None

    def open(self, transcript_id: str, records: Sequence[int]) -> Iterator[OpenedRecord]:
        """Yields those of some records that a batch of the transcript holds, in their order.

        Args:
            transcript_id: The transcript.
            records: Ids in its data commitment, none twice.

        Raises:
            TranscriptError: It is not declared, cannot be read, or has no data commitment.
            UsageError: Too many records are asked for, one twice, or one that does not exist.
        """
        if len(records) > MAX_RECORDS or len(set(records)) < len(records):
            raise UsageError(f"ask for at most {MAX_RECORDS} records, and for none twice")
        with self._turn:
            opened = self._opened(transcript_id)
            count = len(opened.hashes)
            if any(not 0 <= record < count for record in records):
                raise UsageError(f"the data commitment has records 0 to {count - 1}; ask for some of them")
            found = []
            for record in records:
                if record in opened.places:
                    proof = tuple(merkle.inclusion_proof(opened.hashes, record))
                    found.append(OpenedRecord(record=record, content=_content(opened, record), proof=proof))
        yield from found

    def _opened(self, transcript_id: str) -> _Opened:
        declared = next((each for each in self._archive.transcripts() if each.id == transcript_id), None)
        if declared is None:
            raise not_declared(transcript_id)
        if self._last is None or self._last[:2] != (declared.path, transcript_id):
            transcript = Transcript.open(declared.path)
            if transcript.data is None:
                raise TranscriptError("the data of this run were not committed to, so no record of them can be opened")
            leaves = transcript.data.leaves
            hashes = [merkle.leaf_hash(leaves[at : at + DIGEST_SIZE]) for at in range(0, len(leaves), DIGEST_SIZE)]
            places = {
                record: (step.step, row) for step in transcript.records() for row, record in enumerate(step.records)
            }
            self._last = (declared.path, transcript_id, _Opened(transcript, hashes, places))
        return self._last[2]
