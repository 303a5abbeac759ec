"""A function whose calls are recorded steps, which are run as programs once they are known: `Recorder.compile`.

A call that begins as two earlier ones did, which had one tape, has that tape too: then the program of the tape runs in
place of the function, without autograd and dispatch. What the function could decide by is looked at before each call,
and a call of which anything is not known is recorded operation by operation.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from prover.capture.attached_objects import Attached
from prover.capture.looks_at_results import LooksAtResults
from prover.capture.step_capture import Capture
from prover.capture.without_modes import unseen
from prover.recording.compile_refusal import CompileError
from prover.recording.foreseen_reads import Read, Reads, looked
from prover.recording.generator_moves import Moves, places
from prover.recording.gradient_places import astray, lying
from prover.recording.known_function import KnownFunction
from prover.recording.next_call import Begin, NextCall, NotKnownError
from prover.recording.program_run import ProgramRun
from prover.recording.step_runner import StepRunner
from prover.recording.structure import NotPlainError, Part, Shown, described, detached

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Ways:
    """How a Recorder records a step.

    Attributes:
        one_by_one: Operation by operation: called with a batch and its record ids, a context for the function.
        as_program: As a program: called with the batch's tensors, what makes the run, what executes it and returns what
            the function would, and the record ids.
    """

    one_by_one: Callable[[Any, Sequence[int] | None], AbstractContextManager[None]]
    as_program: Callable[
        [dict[str, Tensor], Callable[[], ProgramRun], Callable[[ProgramRun], Any], Sequence[int] | None], Any
    ]


class CompiledStep:
    """Such a function; made by `Recorder.compile`.

    Attributes:
        recorded: Calls that were recorded operation by operation.
        compiled: Calls that ran as programs.
        reason: Why the last call was recorded operation by operation; empty if it was not.
    """

    def __init__(
        self, function: Callable[..., Any], ways: Ways, steps: StepRunner, attached: Attached, *,
        derived: bool,
    ) -> None:  # fmt: skip
        """Prepares.

        Args:
            function: What a step does.
            ways: How a step is recorded.
            steps: Its steps.
            attached: What was attached to it.
            derived: Whether it reads formulas from optimizers.
        """
        self.recorded = 0
        self.reason = ""
        self._function, self._ways, self._steps = function, ways, steps
        self._known = KnownFunction(function, steps, attached, derived=derived)
        self._next = NextCall(self._known)
        self._refusal = ""

    def __call__(self, *args: Any, records: Sequence[int] | None = None) -> Any:
        """Records a step that calls the function.

        Args:
            *args: What the function is called with: nests of tensors, and plain values. They are the step's batch; if
                there is one, as `recorder.step(args[0])` has it, else as `recorder.step(args)`.
            records: Record ids of the batch in the committed data set; see `Recorder.step`.

        Returns:
            What the function returns, with tensors that have no graph.

        Raises:
            CompileError: The function cannot be compiled. Nothing of the step was done. It is raised only while no call
                has run as a program, and not in a job, whose other ranks would wait in their next collective for ever.
                Else there is a warning, and the step is recorded operation by operation.
            WeighbridgeError: As of `Recorder.step`.
        """
        batch = args[0] if len(args) == 1 else args
        if self._refusal:
            return self._as_ever(args, batch, records)
        collecting = gc.isenabled()
        gc.disable()  # between the look at what is there and the step nothing may go
        try:
            return self._run(self._next.begin(args, batch), records)
        except NotKnownError as error:
            self.reason = str(error)
        except CompileError as error:
            if self._steps.rank is None:
                raise
            self.reason = self._refusal = str(error.details["why"])
        finally:
            if collecting:
                gc.enable()
        if self._refusal:
            warnings.warn(
                f"rank {self._steps.rank} records every call as ever, since its function cannot be compiled: "
                f"{self._refusal}. Other ranks may run programs all the same",
                stacklevel=2,
            )
            return self._as_ever(args, batch, records)
        return self._record(args, batch, records)

    @property
    def compiled(self) -> int:
        """How many calls ran as programs."""
        return self._next.compiled

    # -- a call that is known ------------------------------------------------------------------------------------------

    def _run(self, begin: Begin, records: Sequence[int] | None) -> Any:
        steps, structure = self._steps, begin.structure
        shown, program = structure.shown, structure.program
        assert program is not None

        def start() -> ProgramRun:
            return ProgramRun(
                shown.tape, steps.program_context(begin.generators, shown.groups), begin.values, begin.hosts,
                set(shown.written), steps.memory, begin.entered, begin.begins,
            )  # fmt: skip

        def execute(run: ProgramRun) -> Any:
            parameters = self._known.parameters() if begin.dying or shown.grads else {}

            def let_go(slot: int) -> None:
                if slot in begin.dying:
                    parameters[begin.dying[slot]].grad = None

            with shown.moves.leaving():
                run.run(program, steps.number, let_go, steps.offer)
            for name, part in shown.grads.items():
                parameters[name].grad = _made(part, run)
            written = {begin.entered[slot] for slot in shown.written if slot in begin.entered}
            changed = [t for t in begin.look.tensors if t.untyped_storage()._cdata in written and not t.is_inference()]
            torch.autograd.graph.increment_version(changed)
            living = begin.look.living()
            with warnings.catch_warnings(action="ignore"):  # that no optimizer made a step, of which it cannot know
                for each in shown.went():
                    living[each].step()
            return _made(shown.result, run)

        result = self._ways.as_program(begin.flat, start, execute, records)
        self._known.structures.met(structure)
        self._known.numbers.passed(begin.look.numbers)
        self._next.compiled += 1
        self.reason = ""
        return result

    # -- a call that is not --------------------------------------------------------------------------------------------

    def _as_ever(self, args: tuple[Any, ...], batch: Any, records: Sequence[int] | None) -> Any:
        """Records a call from which nothing is to be learned."""
        with self._ways.one_by_one(batch, records):
            result = self._function(*args)
        self.recorded += 1
        with torch.utils._python_dispatch._disable_current_modes():
            return detached(result)

    def _record(self, args: tuple[Any, ...], batch: Any, records: Sequence[int] | None) -> Any:
        steps = self._steps
        learns = steps.ready
        before = self._known.seen()
        given_args, reached = self._known.plain(args, before)
        starts, lay = places(reached), lying(self._known.parameters())
        looks = LooksAtResults()
        reason: str | None = None
        described_result: Any = None
        with self._ways.one_by_one(batch, records):
            capture = steps.capture
            assert isinstance(capture, Capture)
            context = capture.context
            context.asked = lambda: looks.read(len(context.hosts), context.op)
            with looks:
                result = self._function(*args)
            context.asked = None
            moves = Moves.of(starts, reached, steps.generators.own(), context.rng, capture.tape)
            try:
                described_result = described(result, capture)
            except NotPlainError as error:
                reason = f"it returns {error}"
        self.recorded += 1
        with torch.utils._python_dispatch._disable_current_modes():
            given, result = result, detached(result)
            del given
        ranks = capture.ranks
        if ranks is not None and ranks.hindrance is not None:
            reason = ranks.hindrance
        elif looks.first is not None:
            reason = looked(*looks.first)
        elif looks.drew:
            reason = "it draws random numbers of Python's or NumPy's; draw them before and pass them"
        after = self._known.seen()
        if not learns or before is None or after is None:
            return result
        grads = {
            name: part
            for name, p in self._known.parameters().items()
            if p.grad is not None and (part := Part.of(p.grad, capture.slots)) is not None and _survives(part, capture)
        }
        if reason is None:
            dead = {slot for _, slot in capture.tape.frees}
            gone = {item.name for item in capture.tape.inputs if item.slot in dead}
            reason = astray(lay, lying(self._known.parameters()), grads, gone)
        if reason is None and before.found != after.found:
            place = self._known.looking.difference(self._known.roots(), before, after)
            reason = f"it changes {place}; do that outside of the function"
        if isinstance(given_args, str):
            self._known.hinder(given_args)
            return result
        if reason is None and self._known.plain(args, after)[0] != given_args:
            reason = "it changes its arguments; let it work on a copy"
        for look in (before, after):
            look.tensors.clear()
            look.generators.clear()
        shown = Shown(
            before, after, given_args, capture.tape, set(capture.written), described_result, reason, grads,
            moves, self._reads(looks, capture), [] if ranks is None else ranks.uses,
        )  # fmt: skip
        self._known.learn(shown, capture)
        return result

    @unseen
    def _reads(self, looks: LooksAtResults, capture: Capture) -> Reads:
        hosts = capture.context.hosts
        return Reads.of(capture.tape, [Read(each.host, each.op, hosts[each.host], each.line) for each in looks.numbers])


def _survives(part: Part, capture: Capture) -> bool:
    return part.slot in {slot for slot, _ in capture.tape.survivors}


def _made(value: Any, run: ProgramRun) -> Any:
    """Returns what a function returned before, with new tensors in place of parts."""
    if isinstance(value, Part):
        return run.tensor(value.slot, value.dtype, value.size, value.stride, value.offset)
    if type(value) in (list, tuple):
        return type(value)([_made(each, run) for each in value])
    if type(value) is dict:
        return {key: _made(each, run) for key, each in value.items()}
    return value
