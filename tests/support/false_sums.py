"""A Prover that goes through with a false sum: it answers with what its ranks kept, instead of a replay of the job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from prover.keeping import collective_replay
from prover.keeping.archive import Archive
from prover.keeping.cell_requests import PIECE, Cells
from weighbridge.execution.collective_openings import Commitments, Opening, Target
from weighbridge.execution.given_results import write_results
from weighbridge.transcript.job_record import MeshCoordinate, read_job
from weighbridge.transcript.tensor_file import TensorFile

Kept = dict[tuple[int, Any], tuple[list[torch.Tensor], list[torch.Tensor]]]


def kept_by(runs: Path) -> Kept:
    """What the ranks of the job `false` exchanged (`sharded_job.py`), by rank and collective."""
    commitments, kept = Commitments(runs / "false"), Kept()
    for rank in (0, 1):
        file, number = TensorFile(runs / f"kept-{rank}"), 0
        for step in range(commitments.transcript(rank).steps):
            for pairing, committed in commitments.step(rank, step).items():
                both = (("in", committed.call.ins), ("out", committed.call.outs))
                ins, outs = ([file.read(f"{number}/{side}/{i}") for i in range(len(refs))] for side, refs in both)
                kept[rank, pairing] = ins, outs
                number += 1
    return kept


class Lying(Cells):
    """Answers about one job with what was kept."""

    kept: Kept
    job: bytes

    def results(self, transcript_id: str, ranks: Sequence[str], steps: tuple[int, int], going: Any) -> Iterator[bytes]:
        with self._job(transcript_id, ranks) as (path, rank):
            commitments, file = Commitments(path), path.with_name("results")
            if commitments.record.id != self.job:
                yield from super().results(transcript_id, ranks, steps, going)
                return
            results = {
                (step, committed.call.op, number): out.view(torch.uint8)
                for step in range(*steps)
                for pairing, committed in commitments.step(rank, step).items()
                for number, out in enumerate(self.kept[rank, pairing][1])
            }
            write_results(file, MeshCoordinate(commitments.record, rank), results)
            data = file.read_bytes()
            yield from (data[at : at + PIECE] for at in range(0, len(data), PIECE))

    def openings(
        self, transcript_id: str, ranks: Sequence[str], targets: Sequence[Target], going: Any
    ) -> Iterator[Opening]:
        with self._job(transcript_id, ranks) as (path, rank):
            commitments = Commitments(path)
            if commitments.record.id == self.job:
                yield from collective_replay.opened(commitments, rank, targets, self.kept)
            else:
                yield from super().openings(transcript_id, ranks, targets, going)


def lying(archive: Archive, runs: Path) -> Lying:
    """Returns what lies about the job `false` in `runs`."""
    found = Lying(archive)
    found.kept, found.job = kept_by(runs), read_job(runs / "false").id
    return found
