"""Replays a transcript with the second Executor: to its end, to the first operation that differs, or that it lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from weighbridge.core.errors import LogError, TapeError, WeighbridgeError
from weighbridge.execution.following import DifferenceError
from weighbridge.execution.second.executor import SecondExecutor
from weighbridge.execution.second.memory import NotCoveredError
from weighbridge.execution.second_replay import SecondResult
from weighbridge.numerics.conformance import bound_policy
from weighbridge.numerics.rule_table import table_digest
from weighbridge.transcript.job_record import MeshCoordinate
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import checkpoint_digest
from weighbridge.transcript.tape import Tape


class _Replay:
    """One replay."""

    def __init__(self, path: Path, memory: int) -> None:
        self._transcript = Transcript.open(path)
        seed = self._transcript.draft.get("seed")
        if type(seed) is not int:
            raise TapeError("the draft names no seed", code="transcript.malformed")
        self._executor = SecondExecutor(seed, memory)
        self._tapes: dict[bytes, Tape] = {}
        self.at = 0

    def _require(self) -> None:
        draft = self._transcript.draft
        if MeshCoordinate.of(draft) is not None:
            raise NotCoveredError("a rank of a job")
        if draft.get("rules") != table_digest():
            raise NotCoveredError("another table of rules than this version has")
        if self._transcript.on_demand:
            raise NotCoveredError("logs that are made on demand")
        policy = bound_policy.declared(draft)
        if policy.calibrated or policy.probabilistic:
            raise NotCoveredError(f"the policy {policy.name}")
        self._executor.block = policy.block

    def _tape(self, digest: bytes) -> Tape:
        if digest not in self._tapes:
            self._tapes[digest] = Tape.decode(self._transcript.tape(digest))
        return self._tapes[digest]

    def _load(self, step: int) -> None:
        checkpoint = self._transcript.checkpoint(step)
        expected, found = self._transcript.step(step - 1).state, checkpoint_digest(checkpoint)
        if expected != found:
            raise DifferenceError(
                f"checkpoint {step} is not the state after step {step - 1}",
                step=step, op=0, operation="checkpoint", expected=expected.hex(), found=found.hex(),
            )  # fmt: skip
        self._executor.load(checkpoint)

    def _step(self, step: int) -> None:
        transcript, executor = self._transcript, self._executor
        record = transcript.step(step)
        tape = self._tape(record.tape)
        if record.kind == "init" and not tape.nodes:
            self._load(step + 1)  # the model existed before
            return
        log = transcript.log(step)
        if log is None or record.sketches or record.outputs:
            raise NotCoveredError("a step without a rounding log in full")
        executor.run(tape, record, log, transcript.batch(step), transcript.undeclared(step))
        if (found := executor.state_digest()) != record.state:
            raise DifferenceError(
                f"the state after step {step} differs although every result in it matched",
                step=step, op=len(tape.nodes), operation="state", expected=record.state.hex(), found=found.hex(),
            )  # fmt: skip

    def run(self, steps: tuple[int, int] | None, progress: Callable[[int, int], None] | None) -> SecondResult:
        """Runs to the end, or as far as it goes."""
        first, last = steps or (0, self._transcript.steps)
        if not 0 <= first < last <= self._transcript.steps:
            raise WeighbridgeError(f"the transcript has steps 0:{self._transcript.steps}", code="usage")
        begin = self.at = max([c for c in self._transcript.checkpoint_steps if c <= first], default=0)
        difference: dict[str, Any] | None = None
        lacks = ""
        try:
            self._require()
            if begin:
                self._load(begin)
            for step in range(begin, last):
                self._step(step)
                self.at = step + 1
                if progress is not None:
                    progress(step + 1 - begin, last - begin)
        except NotCoveredError as error:
            lacks = str(error)
        except (DifferenceError, TapeError, LogError) as error:
            names = ("step", "op", "operation", "expected", "found")
            difference = {"step": self.at, "op": 0} | {k: error.details[k] for k in names if k in error.details}
            difference |= {"code": error.reason, "message": error.message}
        executor = self._executor
        return SecondResult(
            "differs" if difference is not None else "not covered" if lacks else "match", (begin, self.at),
            executor.state_digest().hex(), executor.rounded, executor.contested, executor.followed, difference, lacks,
        )  # fmt: skip


def replay(
    path: Path, *, steps: tuple[int, int] | None = None, memory: int = 1 << 30,
    progress: Callable[[int, int], None] | None = None,
) -> SecondResult:  # fmt: skip
    """Replays a transcript in this process, which opens what a Prover sent: confine it first.

    Args:
        path: Transcript directory.
        steps: (first, last + 1); all by default. Execution starts at the nearest checkpoint at or before `first`.
        memory: Most bytes that the storages of a tape may have together.
        progress: Called with (steps done, steps to do).

    Raises:
        WeighbridgeError: The transcript is unreadable, altered or incomplete.
    """
    return _Replay(path, memory).run(steps, progress)
