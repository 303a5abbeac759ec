"""Replays a whole job to recompute what a request asks for: a cell's results of collectives, or opened chunks.

None of it is stored: the whole job is replayed between virtual ranks, and what is asked for is kept on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from weighbridge.core import merkle
from weighbridge.core.errors import UsageError
from weighbridge.execution.collective_openings import Commitments, Opening, Piece, Target, leaf_index
from weighbridge.execution.given_results import write_results
from weighbridge.execution.virtual_ranks import Rendezvous
from weighbridge.execution.workers.job_worker import JobReplay
from weighbridge.numerics.conformance.switches import conforming
from weighbridge.transcript.collectives import CHUNK, Call, Pairing, leaves
from weighbridge.transcript.job_record import MeshCoordinate, read_job
from weighbridge.transcript.tensor_file import raw_bytes

Tensor = torch.Tensor
_MEMORY = 1 << 40
Say = Callable[[dict[str, Any]], None]
"""Told of the progress of a replay at every step; what it raises ends the replay."""


def _quiet(_: dict[str, Any]) -> None:
    """Says nothing about progress."""


def _replay(path: Path, rendezvous: Rendezvous, steps: tuple[int, int], device: str, say: Say) -> None:
    request: dict[str, Any] = {
        "path": str(path), "steps": list(steps), "device": device, "stop": None, "salt": None, "memory": _MEMORY,
    }  # fmt: skip
    with torch.no_grad(), conforming():
        found = JobReplay(request, [], say, rendezvous).run()
    if found["verdict"] != "match":
        raise UsageError(
            f"the job does not replay ({found['verdict']} of rank {found['rank']}), so nothing can be shown"
        )


class _Keeping(Rendezvous):
    """A rendezvous that keeps what was asked for."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks)
        self.results: dict[tuple[int, int, int], Tensor] = {}
        self.cell: tuple[int, tuple[int, int]] | None = None
        self.wanted: set[tuple[int, Pairing]] = set()
        self.tensors: dict[tuple[int, Pairing], tuple[list[Tensor], list[Tensor]]] = {}

    def exchange(self, rank: int, step: int, call: Call, ins: Sequence[Tensor], outs: Sequence[Tensor]) -> list[Tensor]:
        """See `Rendezvous.exchange`."""
        results = super().exchange(rank, step, call, ins, outs)
        if self.cell is not None and rank == self.cell[0] and self.cell[1][0] <= step < self.cell[1][1]:
            for number, result in enumerate(results):
                whole = torch.frombuffer(bytearray(raw_bytes(result)), dtype=torch.uint8) if result.numel() else None
                self.results[step, call.op, number] = torch.empty(0, dtype=torch.uint8) if whole is None else whole
        if (rank, call.pairing(step)) in self.wanted:
            self.tensors[rank, call.pairing(step)] = [t.clone() for t in ins], [t.clone() for t in results]
        return results


def cell_results(
    path: str | Path, rank: int, steps: tuple[int, int], out: str | Path, *, device: str = "cpu", say: Say = _quiet
) -> None:
    """Writes the results of a cell's collectives to a file, for `weighbridge.execution.job_replay.replay_cell`.

    Args:
        path: The job's directory.
        rank: The cell's rank.
        steps: (first, last + 1) of the cell.
        out: The file to write.
        device: What executes the job.
        say: Told of the progress.

    Raises:
        UsageError: There is no such rank, or the job does not replay.
    """
    record = read_job(path)
    if not 0 <= rank < record.ranks:
        raise UsageError(f"the job has ranks 0:{record.ranks}; there is no rank {rank}")
    keeping = _Keeping(record.ranks)
    keeping.cell = rank, steps
    _replay(Path(path), keeping, steps, device, say)
    write_results(Path(out), MeshCoordinate(record, rank), keeping.results)


def open_chunks(
    path: str | Path, rank: int, targets: Sequence[Target], *, device: str = "cpu", say: Say = _quiet
) -> list[Opening]:
    """Opens chunks of a rank's results, each with the contributions that it is made from.

    Args:
        path: The job's directory.
        rank: The rank whose results they are.
        targets: The chunks.
        device: What executes the job.
        say: Told of the progress.

    Raises:
        UsageError: There are no such chunks, or the job does not replay.
    """
    if not targets:
        return []
    commitments = Commitments(path)
    keeping = _Keeping(commitments.record.ranks)
    for target in targets:
        pairing = commitments.at(rank, target).call.pairing(target.step)
        keeping.wanted.add((rank, pairing))
        keeping.wanted.update((other, pairing) for other, _, _ in commitments.sources(rank, target))
    _replay(Path(path), keeping, (min(t.step for t in targets), max(t.step for t in targets) + 1), device, say)
    return opened(commitments, rank, targets, keeping.tensors)


def opened(
    commitments: Commitments,
    rank: int,
    targets: Sequence[Target],
    tensors: dict[tuple[int, Pairing], tuple[list[Tensor], list[Tensor]]],
) -> list[Opening]:
    """Opens chunks of tensors at hand.

    Args:
        commitments: Those of the job.
        rank: The rank whose results they are.
        targets: The chunks.
        tensors: (contributions, results) by rank and collective.
    """
    hashes: dict[tuple[int, Pairing, int], list[bytes]] = {}

    def piece(who: int, pairing: Pairing, call: Call, side: int, which: int, chunk: int) -> Piece:
        found = tensors[who, pairing][side]
        if (who, pairing, side) not in hashes:
            hashes[who, pairing, side] = leaves(found)
        index = leaf_index((call.ins, call.outs)[side], which, chunk)
        data = bytes(raw_bytes(found[which])[chunk * CHUNK : (chunk + 1) * CHUNK])
        return Piece(data, tuple(merkle.inclusion_proof(hashes[who, pairing, side], index)))

    result = []
    for target in dict.fromkeys(targets):
        call = commitments.at(rank, target).call
        pairing = call.pairing(target.step)
        parts = [
            piece(other, pairing, theirs.call, 0, which, target.chunk)
            for other, theirs, which in commitments.sources(rank, target)
        ]
        result.append(Opening(target, piece(rank, pairing, call, 1, target.out, target.chunk), tuple(parts)))
    return result
