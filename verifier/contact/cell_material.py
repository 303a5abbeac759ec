"""Cells: one rank of a job replayed alone with results that the Prover sends, checked by opening random chunks.

A cell is cheap, whatever the number of ranks: only the check of chunks grows with it. In return its verdict is `match
given collectives`. The Prover sends the results of the rank's collectives; the replay compares each with the root in
the rank's step record. Random chunks of them are opened at every rank that they come from, checked against the step
records of those ranks, and combined again (docs/sharding.md).
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from verifier.contact.clients import FETCH_SECONDS, ProverClient
from verifier.model.facts import Cell, Explanation, Shard
from verifier.store.cache_room import CELLS, StorageError
from weighbridge.core.errors import Finding, ProverError, TranscriptError, WeighbridgeError
from weighbridge.execution import job_questions
from weighbridge.execution.collective_openings import Opening, Target, encode
from weighbridge.execution.given_results import write_results
from weighbridge.execution.job_questions import CellPlan, Side
from weighbridge.execution.worker_process import Limits

Connect = Callable[[], AbstractContextManager[ProverClient]]
"""Opens a connection to the Prover."""

MAX_RESULTS = 64 << 30
"""Bytes of results of one cell that a Verifier is willing to fetch."""
_HEADER, _PER_RESULT = 4096, 256
"""Bytes around the results in their file, at most."""


class Cells:
    """Prepares cells for one inspection; each is prepared once, however many snapshots lie in it."""

    def __init__(
        self,
        chunks: int,
        *,
        deadline_s: float = FETCH_SECONDS,
        chooser: random.Random | None = None,
        limits: Limits = job_questions.LIMITS,
    ) -> None:
        """Takes what the plan says.

        Args:
            chunks: How many chunks of each cell to check.
            deadline_s: Seconds for each of a Prover's two answers; it replays the job for each.
            chooser: Draws the chunks; by default the system's randomness, which the Prover cannot foresee.
            limits: On workers that read tapes and opened chunks.
        """
        self._chunks, self._deadline, self._chooser = chunks, deadline_s, chooser or random.SystemRandom()
        self._limits = limits
        self._plans: dict[tuple[Path, int, tuple[int, int]], CellPlan] = {}
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
            at = shard.job, shard.coordinate.rank, (claim.step, claim.op)
            if at not in self._plans:
                self._plans[at] = job_questions.plan(*at, limits=self._limits)
            key = *at[:2], self._plans[at].steps
            if key not in self._prepared:
                self._prepared[key] = self._prepare(shard, claim, self._plans[at], connect)
        except WeighbridgeError as error:
            return error
        return self._prepared[key]

    def _prepare(self, shard: Shard, claim: Explanation, plan: CellPlan, connect: Connect) -> Cell | WeighbridgeError:
        assert isinstance(shard.job, Path), "prepare() has looked"
        rank, steps, sides = shard.coordinate.rank, plan.steps, plan.sides
        folder = shard.job.with_name(f"{shard.job.name}{CELLS}")
        folder.mkdir(exist_ok=True)
        file = folder / f"{rank}-{steps[0]}-{steps[1]}.safetensors"
        try:
            if not sides:
                write_results(file, shard.coordinate, {})
                return Cell(steps=steps, results=file, chunks=0, drawn=0, findings=[])
            with connect() as client:
                self._fetch(client, claim, sides, steps, file)
                targets = self._draw(sides)
                with tempfile.TemporaryDirectory(prefix="opened-", dir=folder) as name:
                    opened = Path(name) / "opened.cbor"
                    done, findings = self._open(client, shard, claim, targets, opened)
                    found = job_questions.check(shard.job, rank, steps, targets[:done], opened, limits=self._limits)
            findings = [*found, *findings]
        except WeighbridgeError as error:
            file.unlink(missing_ok=True)
            return error
        total = sum(side.chunks for side in sides)
        return Cell(steps=steps, results=file, chunks=total, drawn=len(targets), findings=findings)

    def _fetch(
        self, client: ProverClient, claim: Explanation, sides: Sequence[Side], steps: tuple[int, int], file: Path
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

    def _draw(self, sides: Sequence[Side]) -> list[Target]:
        there = sum(side.chunks for side in sides)
        return job_questions.chunks_of(sides, sorted(self._chooser.sample(range(there), min(self._chunks, there))))

    def _open(
        self, client: ProverClient, shard: Shard, claim: Explanation, targets: Sequence[Target], opened: Path
    ) -> tuple[int, list[Finding]]:
        """Has chunks opened and writes each to a file as it comes; returns how many came, and that others did not."""
        findings: list[Finding] = []
        limit, done = 1 + shard.coordinate.job.ranks, 0
        why: WeighbridgeError | None = None
        with opened.open("wb") as file:
            try:
                for pieces in client.open_chunks(
                    claim.transcript_id, claim.ranks, targets, limit=limit, deadline_s=self._deadline
                ):
                    file.write(encode([Opening(targets[done], pieces[0], tuple(pieces[1:]))]))
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
                    subject=f"rank {shard.coordinate.rank} of the job {shard.coordinate.job.id.hex()}",
                )
            )
        return done, findings
