"""One rank of a job that may be resumed, or is: all ranks go on from one step, and end together.

Ranks seldom die at one operation, so one may have recorded a step that another one was in. All of them go on from the
beginning of the last step that each has kept, and make the steps after it again, together, since their collectives
need each other. Each compares the steps that it had recorded, and records those that it had not.

No replay of one rank makes a state that others contributed to. So a beginning is kept at each checkpoint, which stays
until the recording ends: cheap beside the checkpoint, and no rank need know how far the others are.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prover.capture.attached_objects import Attached
from prover.capture.without_modes import unseen
from prover.recording.resumption import Kept, Resuming
from weighbridge.attest.manifest import SigningKey, open_manifest
from weighbridge.core.bounded import DEFAULT_LIMITS, decode_cbor, read_file
from weighbridge.core.durable import sync
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.job_record import RESUME, MeshCoordinate, rank_name
from weighbridge.transcript.writer import DRAFT, MANIFEST

if TYPE_CHECKING:  # it loads torch.distributed, which one process does without
    from prover.ranks.job import Job

_ENDED = "ended"
"""File that says that the program of every step is over: what is left is to close the transcript."""
_ALL = (1 << 62) - 1
_DIFFERS = "record.resume.differs"


class _Standing(enum.IntEnum):
    """How far the recording of a rank is."""

    UNDER_WAY = 0
    ENDED = 1
    COMPLETE = 2


class ResumingRank(Resuming):
    """The recording of one rank of a job that may be resumed, or is."""

    def __init__(
        self, path: Path, *, job: Job, draft: Mapping[str, Any], key: SigningKey, data: DataCommitment | None,
        segment_steps: int,
    ) -> None:  # fmt: skip
        """Begins a recording, or continues the one that is there, if all ranks can.

        Raises:
            UsageError: A rank cannot resume, or all are complete by now.
        """
        self._job = job
        folder = path.with_name(path.name + RESUME)
        ended = (folder / _ENDED).exists() and (path / DRAFT).exists()
        standing, steps = _Standing.ENDED if ended else _Standing.UNDER_WAY, 0
        wrong: WeighbridgeError | None = None
        try:
            _require_rank(path, job.coordinate.rank)
            if (signed := _complete(path)) is None:
                super().__init__(path, draft=draft, key=key, data=data, segment_steps=segment_steps)
                steps = self.writer.steps
            else:
                standing, steps = _Standing.COMPLETE, signed
        except WeighbridgeError as error:
            wrong = error
        job.require_all(wrong)
        old = getattr(self, "_old", None)
        told = job.tell([standing, steps, int(old is not None)])
        self._settle(path, told)
        if old is not None and all(each[2] for each in told):
            old.common, old.agree = max(each[1] for each in told), lambda: job.tell([0])

    def _settle(self, path: Path, told: Sequence[Sequence[int]]) -> None:
        """Closes what only the closing is missing of, if the program of all ranks is over."""
        standings, steps = [each[0] for each in told], [each[1] for each in told]
        if min(standings) == _Standing.UNDER_WAY:
            if _Standing.COMPLETE in standings:
                rank, other = standings.index(_Standing.UNDER_WAY), standings.index(_Standing.COMPLETE)
                raise UsageError(
                    f"rank {rank} holds {steps[rank]} steps of a job that rank {other} has completed with "
                    f"{steps[other]}; restore {rank_name(rank)} and {rank_name(rank)}{RESUME}",
                    code=_DIFFERS,
                )
            (self._folder / _ENDED).unlink(missing_ok=True)
            return
        if standings[self._job.coordinate.rank] == _Standing.ENDED:
            if self._old is not None:
                self._old.begin(self._old.recorded)
            super().close(complete=True)
        self._job.tell([0])
        closed = ", ".join(rank_name(r) for r, each in enumerate(standings) if each != _Standing.COMPLETE)
        left = f"; {closed}, which a crash had left open, is closed now" if closed else ""
        raise UsageError(
            f"the job in {path.parent} is complete: there is nothing to resume{left}; choose another directory for a "
            "new run"
        )

    # -- while recording -----------------------------------------------------------------------------------------------

    def _keep(self, step: int, keep: Callable[[], Kept]) -> None:
        """See `Resuming._keep`: the first step after each checkpoint is kept, and stays."""
        if self._kept and self._kept[-1] >= self.writer.last_checkpoint:
            return
        self._put(step, keep())
        sync(self._folder / f"{step:08d}.cbor")
        sync(self._folder)

    def close(self, complete: bool) -> None:
        """See `Resuming.close`; no rank signs before all have all steps, so that none needs another one again."""
        if complete and not self.repeating:
            if self._old is not None:
                self._old.accept()
            self.writer.finish_segment()
            self.writer.flush()
            (self._folder / _ENDED).touch()
            sync(self._folder)
            self._job.tell([self.writer.steps])
        super().close(complete)

    # -- after a crash -------------------------------------------------------------------------------------------------

    @unseen
    def start(self, attached: Attached) -> Kept | None:
        """See `Resuming.start`: the last step whose beginning every rank has.

        Raises:
            UsageError: There is none, because a rank lost what it had (`record.resume.differs`).
        """
        job = self._job
        first = job.tell([self._last(_ALL), int(job.holds_more(attached))])
        if any(more for _, more in first):
            return None
        told = best = [step for step, _ in first]
        while min(told) < max(told):
            told = [step for (step,) in job.tell([self._last(min(told))])]
        if not told[0]:
            self._require_no_loss(best)
            return None
        assert self._old is not None, "it has a step's beginning"
        self._old.begin(told[0])
        return self._read(told[0])

    def _last(self, bound: int) -> int:
        """Returns the last step up to `bound` with which this rank can begin; 0 if there is none."""
        if self._old is None:
            return 0
        old = self._old
        able = (step for step in reversed(self._kept) if step <= bound and self._read(step) and old.alone(step))
        return next(able, 0)

    def _require_no_loss(self, best: Sequence[int]) -> None:
        """Checks that ranks have no step in common only because a crash came before one had begun.

        Args:
            best: The last step with which each rank could begin.
        """
        heard = set() if self._old is None else self._old.heard()
        told = self._job.tell([int(rank in heard) for rank in range(len(best))])
        lost = {rank for rank, step in enumerate(best) if step or any(each[rank] for each in told)}
        lacking, step = min(range(len(best)), key=best.__getitem__), max(best)
        if step and lacking in lost:
            raise UsageError(
                f"rank {lacking} lacks what step {step} begins with, and the ranks have no other step in common; "
                f"restore {rank_name(lacking)} and {rank_name(lacking)}{RESUME} beside it, or remove those with "
                f"{RESUME} of all ranks, and all steps are recomputed",
                code=_DIFFERS, rank=lacking, step=step,
            )  # fmt: skip


def _require_rank(path: Path, rank: int) -> None:
    """Checks that the recording of another rank does not lie in the place of this one's."""
    if (path / DRAFT).exists():
        there = MeshCoordinate.of(decode_cbor(read_file(path / DRAFT, max_bytes=DEFAULT_LIMITS.manifest)))
        if there is not None and there.rank != rank:
            raise UsageError(
                f"{path} holds the recording of rank {there.rank}, and this process is rank {rank}; number the ranks "
                "as before",
                code=_DIFFERS,
            )


def _complete(path: Path) -> int | None:
    """Returns the number of steps of a complete transcript; None if there is none."""
    if not (path / MANIFEST).exists():
        return None
    manifest = open_manifest(read_file(path / MANIFEST, max_bytes=DEFAULT_LIMITS.manifest))
    return manifest.steps if manifest.complete else None
