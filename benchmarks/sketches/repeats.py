"""Runs a transcript's steps again in this process, with a context of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from weighbridge.core.host_memory import keep_freed
from weighbridge.execution.executor import Executor
from weighbridge.execution.following import Following
from weighbridge.numerics.conformance import bound_policy as policies
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.conformance.switches import conforming
from weighbridge.numerics.rounding.rounding_log import LogReader
from weighbridge.numerics.warm import warm
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape

_MEMORY = 1 << 62
"""Bytes that the storages of a tape may have: it is a recording of one's own."""

Made = Callable[[StepRecord, LogReader | None, int, Policy], Following]
"""Makes the context of a step from its record, log, seed and policy."""


class _Repeating(Executor):
    context_of: Made

    def _context(self, record: StepRecord, log: LogReader | None) -> Following:
        return self.context_of(record, log, self._seed, self._policy)


def repeat(path: Path, made: Made, *, logs: bool = True) -> Iterator[tuple[int, Tape, Following]]:
    """Yields (step, tape, context) after each step, the initialisation too; every state is compared.

    Args:
        path: The transcript.
        made: Makes the contexts.
        logs: Whether contexts are given the recorded logs.

    Raises:
        WeighbridgeError: What the contexts raise.
        RuntimeError: A state differs.
    """
    transcript = Transcript.open(path)
    executor = _Repeating("cpu", int(transcript.draft["seed"]), _MEMORY, policies.declared(transcript.draft))
    executor.context_of = made
    keep_freed()
    warm()
    tapes: dict[bytes, Tape] = {}
    with torch.no_grad(), conforming():
        for step in range(transcript.steps):
            record = transcript.step(step)
            tape = tapes.setdefault(record.tape, Tape.decode(transcript.tape(record.tape)))
            log = transcript.log(step) if logs else None
            batch, undeclared = transcript.batch(step), transcript.undeclared(step)
            context = executor.run(tape, record.tape, record, log, batch, undeclared)
            if executor.state_digest() != record.state:
                raise RuntimeError(f"the state after step {step} differs")
            yield step, tape, context
