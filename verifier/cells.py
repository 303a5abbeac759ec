"""Cells: one rank of a job replayed alone, with what that takes asked of the Prover, and made good by opened chunks.

A cell is cheap, whatever the number of ranks: only the check of chunks grows with it. In return its verdict is `match
given collectives`. The Prover sends the results of the rank's collectives; the replay compares each with the root in
the rank's step record. Random chunks of them are opened at every rank that they come from, checked against the step
records of those ranks, and combined again (docs/sharding.md).
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from verifier.cache import CELLS, StorageError
from verifier.clients import FETCH_SECONDS, ProverClient
from verifier.facts import Cell, Explanation, Shard
from weighbridge.collectives import chunk_count
from weighbridge.errors import Finding, ProverError, TranscriptError, WeighbridgeError
from weighbridge.given import write_results
from weighbridge.job import rank_name
from weighbridge.job_replay import replay_cell
from weighbridge.openings import Commitments, Opening, Target, ref_bytes, verify
from weighbridge.replay import Limits, ReplayResult

Connect = Callable[[], AbstractContextManager[ProverClient]]
"""Opens a connection to the Prover."""

MAX_RESULTS = 64 << 30
"""Bytes of results of one cell that a Verifier is willing to fetch."""
_HEADER, _PER_RESULT = 4096, 256
"""Bytes around the results in their file, at most."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One result of a collective: how many bytes and chunks it has."""

    step: int
    op: int
    out: int
    bytes: int

    @property
    def chunks(self) -> int:
        return chunk_count(self.bytes)


class Cells:
    """Prepares cells for one inspection; each is prepared once, however many snapshots lie in it."""

    def __init__(self, chunks: int, *, deadline_s: float = FETCH_SECONDS, chooser: random.Random | None = None) -> None:
        """Takes what the plan says.

        Args:
            chunks: How many chunks of each cell to check.
            deadline_s: Seconds for each of a Prover's two answers; it replays the job for each.
            chooser: Draws the chunks; by default the system's randomness, which nobody can foresee.
        """
        self._chunks, self._deadline, self._chooser = chunks, deadline_s, chooser or random.SystemRandom()
        self._commitments: dict[Path, Commitments] = {}
        self._prepared: dict[tuple[Path, int, tuple[int, int]], Cell | WeighbridgeError] = {}

    def prepare(self, shard: Shard, claim: Explanation, connect: Connect) -> Cell | WeighbridgeError:
        """Fetches the results of a cell's collectives and checks chunks of them.

        Args:
            shard: The rank and its job; the job must be there.
            claim: Where the Prover says that the snapshot was taken.
            connect: Connects to that Prover.

        Returns:
            The cell, or why there is none: `job.tail` if a crash cut off what would be needed, `job.results.missing` if
            the Prover does not hand it out.
        """
        if isinstance(shard.job, WeighbridgeError):
            return shard.job
        try:
            commitments = self._commitments.get(shard.job) or Commitments(shard.job)
            self._commitments[shard.job] = commitments
            key = shard.job, shard.place.rank, _steps(commitments, shard.place.rank, claim)
            if key not in self._prepared:
                self._prepared[key] = self._prepare(commitments, shard, claim, key[2], connect)
        except WeighbridgeError as error:
            return error
        return self._prepared[key]

    def _prepare(
        self, commitments: Commitments, shard: Shard, claim: Explanation, steps: tuple[int, int], connect: Connect
    ) -> Cell | WeighbridgeError:
        assert isinstance(shard.job, Path), "prepare() has looked"
        rank = shard.place.rank
        folder = shard.job.with_name(f"{shard.job.name}{CELLS}")
        folder.mkdir(exist_ok=True)
        file = folder / f"{rank}-{steps[0]}-{steps[1]}.safetensors"
        try:
            _whole(commitments, steps[1])
            sides = _sides(commitments, rank, steps)
            if not sides:
                write_results(file, shard.place, {})
                return Cell(steps=steps, results=file, chunks=0, drawn=0, findings=[])
            with connect() as client:
                self._fetch(client, claim, sides, steps, file)
                targets = self._draw(sides)
                findings = self._open(client, commitments, rank, claim, targets)
            findings += commitments.equal_results(rank, steps)
        except WeighbridgeError as error:
            file.unlink(missing_ok=True)
            return error
        total = sum(side.chunks for side in sides)
        return Cell(steps=steps, results=file, chunks=total, drawn=len(targets), findings=findings)

    def _fetch(
        self, client: ProverClient, claim: Explanation, sides: Sequence[_Side], steps: tuple[int, int], file: Path
    ) -> None:
        limit = sum(side.bytes for side in sides)
        if limit > MAX_RESULTS:
            raise TranscriptError(
                f"the results of this cell have {limit} bytes, above the limit of {MAX_RESULTS}; replay all ranks",
                code="job.results.oversized",
            )
        limit += _HEADER + _PER_RESULT * len(sides)
        try:
            with file.open("wb") as out:
                for piece in client.cell_results(
                    claim.transcript_id, claim.ranks, steps, limit=limit, deadline_s=self._deadline
                ):
                    out.write(piece)
        except OSError as error:
            raise StorageError(
                f"results of collectives cannot be stored ({error.strerror}); free space on the Verifier's disk and "
                "start the inspection again"
            ) from None
        except ProverError:
            raise
        except WeighbridgeError as error:
            raise TranscriptError(
                f"the Prover does not hand out the results of the collectives of steps {steps[0]} to {steps[1] - 1} "
                f"({error.message[:500]}); ask why",
                code="job.results.missing",
            ) from None

    def _draw(self, sides: Sequence[_Side]) -> list[Target]:
        ends = list(accumulate(side.chunks for side in sides))
        found = []
        for number in sorted(self._chooser.sample(range(ends[-1]), min(self._chunks, ends[-1]))):
            at = bisect.bisect_right(ends, number)
            side = sides[at]
            found.append(Target(side.step, side.op, side.out, number - (ends[at] - side.chunks)))
        return found

    def _open(
        self, client: ProverClient, commitments: Commitments, rank: int, claim: Explanation, targets: Sequence[Target]
    ) -> list[Finding]:
        """Has chunks opened and checks each as it comes; what does not come is a finding."""
        findings: list[Finding] = []
        limit, done = 1 + commitments.record.ranks, 0
        why: WeighbridgeError | None = None
        try:
            for pieces in client.open_chunks(
                claim.transcript_id, claim.ranks, targets, limit=limit, deadline_s=self._deadline
            ):
                opening = Opening(targets[done], pieces[0], tuple(pieces[1:]))
                findings += verify(commitments, rank, [targets[done]], [opening])
                done += 1
        except ProverError:
            raise
        except WeighbridgeError as error:
            why = error
        if done < len(targets) or why is not None:
            message = "the Prover did not open exactly the chunks that were asked for; ask why"
            findings.append(
                Finding(
                    id="job.chunk.missing",
                    message=message if why is None else f"{message} ({why.message[:500]})",
                    expected=f"{len(targets)} chunks",
                    found=f"{done} chunks",
                    subject=f"rank {rank} of the job {commitments.record.id.hex()}",
                )
            )
        return findings


def _steps(commitments: Commitments, rank: int, claim: Explanation) -> tuple[int, int]:
    """Returns the steps of the cell of a position: from the last checkpoint, to the step of which operations ran."""
    transcript = commitments.transcript(rank)
    begin = max((c for c in transcript.checkpoint_steps if c <= claim.step), default=0)
    return begin, min(claim.step + bool(claim.op), transcript.steps)


def _whole(commitments: Commitments, end: int) -> None:
    """Raises if a crash kept a rank from the steps whose collectives are needed."""
    for rank in range(commitments.record.ranks):
        transcript = commitments.transcript(rank)
        if transcript.steps < end and not transcript.manifest.complete:
            raise TranscriptError(
                f"the transcript of rank {rank} ends in a crash before step {end - 1} was whole, so what it "
                "contributed cannot be made again; not verified",
                code="job.tail",
            )


def _sides(commitments: Commitments, rank: int, steps: tuple[int, int]) -> list[_Side]:
    return [
        _Side(step, committed.call.op, out, ref_bytes(ref))
        for step in range(*steps)
        for committed in sorted(commitments.step(rank, step).values(), key=lambda each: each.call.op)
        for out, ref in enumerate(committed.call.outs)
        if ref_bytes(ref)
    ]


def replay(
    shard: Shard,
    cell: Cell,
    step: int,
    op: int,
    *,
    salt: bytes,
    device: str,
    limits: Limits,
    env: Mapping[str, str],
    progress: Callable[[int, int], None],
) -> ReplayResult:
    """Replays a cell up to a position in it; see `verifier.jobs.replay_shard`.

    Raises:
        WeighbridgeError: It cannot be replayed.
    """
    if isinstance(shard.job, WeighbridgeError):
        raise shard.job
    rank = shard.place.rank
    result = replay_cell(
        shard.job, rank, results=cell.results, stop=(step, op), salt=salt, device=device, limits=limits, env=env,
        progress=progress,
    )  # fmt: skip
    named = [replace(each, subject=f"{rank_name(rank)}: {each.subject}".rstrip(": ")) for each in result.findings]
    return replace(result, findings=named)
