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
from typing import Any, NoReturn

import torch

from prover.capture.attached_objects import Attached
from prover.capture.generators import counter_of
from prover.capture.looks_at_results import LooksAtResults
from prover.capture.python_objects import Look, Looking, TooMuchError, held_alone
from prover.capture.step_capture import Capture
from prover.capture.without_modes import unseen
from prover.recording.compile_refusal import CompileError, refused
from prover.recording.foreseen_reads import Read, Reads, looked
from prover.recording.group_numbers import GroupNumbers
from prover.recording.known_structures import KnownStructures
from prover.recording.known_values import read_ahead
from prover.recording.plain_arguments import Number, names_of, numbers_apart, without_tensors
from prover.recording.program_run import ProgramRun
from prover.recording.step_runner import StepRunner, as_program
from prover.recording.structure import NotPlainError, Part, Shown, Structure, check, described, detached
from weighbridge.core.errors import RefusedOperationError
from weighbridge.program.operands import tensor
from weighbridge.transcript.data import flatten
from weighbridge.transcript.tape import absolute_name

Tensor = torch.Tensor

PATIENCE = 3
"""After how many calls in a row that cannot be programs a function is refused; first calls may set things up."""


class NotKnownError(Exception):
    """Something about the next call is not known; the text says what."""


class _ReadsOtherwiseError(NotKnownError):
    """The next call reads another number than those before it, if it is the structure that was looked at."""


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
        self.recorded = self.compiled = 0
        self.reason = ""
        self._function, self._ways, self._steps, self._attached = function, ways, steps, attached
        self._derived = derived
        self._names = names_of(function)
        self._looking = Looking(self._name_of)
        self._structures = KnownStructures()
        self._numbers = GroupNumbers()
        self._hindered: list[str] = []
        """Why each of the last calls that were recorded could not have been a program."""
        self._warned = False

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
                has run as a program; after that there is a warning, and the step is recorded operation by operation.
            WeighbridgeError: As of `Recorder.step`.
        """
        batch = args[0] if len(args) == 1 else args
        collecting = gc.isenabled()
        gc.disable()  # between the look at what is there and the step nothing may go
        try:
            return self._run(self._begin(args, batch), records)
        except NotKnownError as error:
            self.reason = str(error)
        finally:
            if collecting:
                gc.enable()
        return self._record(args, batch, records)

    # -- before a call -------------------------------------------------------------------------------------------------

    def _name_of(self, address: int) -> str | None:
        name = self._steps.state.names.get(address)
        return None if name is None else self._steps.relative(name)

    def _roots(self) -> list[Any]:
        attached = self._attached
        modules, optimizers = ([each for _, each in found] for found in (attached.modules(), attached.optimizers()))
        return [self._function, *modules, *optimizers, *attached.others()]

    @unseen
    def _begin(self, args: tuple[Any, ...], batch: Any) -> _Begin:
        """Looks whether the next call is known; returns what its program needs.

        Raises:
            NotKnownError: It is not.
            CompileError: It never will be.
        """
        steps = self._steps
        if not steps.ready:
            raise NotKnownError("the recording computes again what a crash interrupted, or has not begun")
        if not self._structures and not self._hindered:
            raise NotKnownError("this is the first call")
        if len(self._hindered) >= PATIENCE:
            self._refuse(self._hindered[-1])
        gc.collect()
        flat = dict(flatten(batch))
        if any(t.untyped_storage()._cdata in steps.state.names or t.requires_grad for t in flat.values()):
            raise NotKnownError("its arguments are state, or need gradients")
        try:
            arguments, look = without_tensors(args, self._names), self._looking.look(self._roots())
        except (TooMuchError, NotPlainError) as error:
            raise NotKnownError(str(error)) from None
        reasons: list[NotKnownError] = []
        for structure in self._alike(look, arguments):
            entering = self._entering(structure, flat)
            if entering is None:
                continue
            try:
                return self._prepared(structure, look, flat, *entering)
            except NotKnownError as error:
                if not structure.shown.reads.each:  # else a structure that reads other numbers may be the right one
                    raise
                reasons.append(error)
        reasons.sort(key=lambda each: isinstance(each, _ReadsOtherwiseError))
        raise reasons[0] if reasons else NotKnownError("its arguments, or what lives, have other shapes or places")

    def _prepared(
        self, structure: Structure, look: Look, flat: dict[str, Tensor], entered: dict[int, int], begins: dict[int, int]
    ) -> _Begin:
        """Returns what the program of a call needs, if the call goes on as a structure that it begins like.

        Raises:
            NotKnownError: It does not, or that is not known.
            CompileError: The structure cannot have a program.
        """
        steps = self._steps
        self._accept(structure)
        step = steps.substitution.explaining(steps.updates + 1, (), steps.derived.counts())
        if (changed := self._numbers.unexplained(look.numbers, step)) is not None:
            raise NotKnownError(changed)
        shown = structure.shown
        inputs = {item.slot for item in shown.tape.inputs if item.origin == "state"}

        def on(slot: int) -> Tensor:
            if slot not in entered:  # of no bytes
                return torch.empty(0, dtype=torch.uint8)
            storage = steps.memory.storage(entered[slot])
            assert storage is not None
            return torch.empty(0, dtype=torch.uint8).set_(storage)

        counted = read_ahead(structure.counters, lambda ref: tensor(on(ref[0]), ref), structure.values)
        if counted is None:
            raise NotKnownError("what it adds to a counter changes")
        hosts = shown.reads.among(counted)
        step = steps.substitution.explaining(steps.updates + 1, hosts, steps.derived.counts())
        values = structure.values.expected(step, hosts, steps.substitution)
        if isinstance(values, int):
            raise NotKnownError(f"formulas leave open what number {values} of its tape is")
        with as_program():
            other = shown.reads.differ(steps.unlogged_context, values, on, begins)
        if other is not None:
            raise _ReadsOtherwiseError(f"{other.line} looks at a result that is not what it was")
        dying = {slot: name for slot, name in self._dying(structure) if slot in inputs}
        if any(not self._alone(name) for name in dying.values()):
            raise NotKnownError("something else holds a gradient that it lets go of")
        return _Begin(structure, look, flat, entered, begins, values, hosts, dying)

    def _alike(self, look: Look, arguments: list[Any]) -> list[Structure]:
        """Returns the structures that begin as the next call does, but for its batch."""
        alike = self._structures.alike(look, arguments)
        if not alike:
            last = self._structures.last
            place = self._looking.difference(self._roots(), last.before, look)
            raise NotKnownError(
                "other gradients exist" if place is None and last.before.grads != look.grads
                else _other_arguments(last.arguments, arguments) if place is None else f"{place} is not as it was"
            )  # fmt: skip
        return alike

    def _entering(self, structure: Structure, flat: dict[str, Tensor]) -> tuple[dict[int, int], dict[int, int]] | None:
        steps, tape = self._steps, structure.shown.tape
        trial = steps.trial_capture()
        try:
            for name in steps.dropped:
                trial.state_dropped(steps.relative(name), steps.state.sizes[name])
            trial.begin_batch(flat)
        except RefusedOperationError:
            return None
        first = len(trial.tape.inputs)
        if tape.inputs[:first] != trial.tape.inputs or tape.batch_views != trial.tape.batch_views:
            return None
        entered = {slot: address for address, slot in trial.slots.items()}
        addresses = {name: address for address, name in steps.state.names.items()}
        for item in tape.inputs[first:]:
            if item.origin == "free":  # of no bytes
                continue
            name = absolute_name(item.name, steps.number)
            if item.origin != "state" or steps.state.sizes.get(name) != item.bytes:
                return None
            entered[item.slot] = addresses[name]
        return entered, trial.batch_begins()

    def _refuse(self, why: str) -> NoReturn:
        """Refuses the function, or this call if others have run as programs."""
        if not self.compiled:
            raise refused(why)
        if not self._warned:
            self._warned = True
            warnings.warn(f"some calls cannot be compiled and are recorded as ever: {why}", stacklevel=5)
        raise NotKnownError(why)

    def _accept(self, structure: Structure) -> None:
        """Makes a structure's program, unless it has one.

        Raises:
            NotKnownError: It has none.
            CompileError: It cannot have one, and no call has run as a program.
        """
        if structure.values.observed < 2:
            last = f"; and of the last one: {self._hindered[-1]}" if self._hindered else ""
            raise NotKnownError("only one call began like this so far, or since a number was set" + last)
        problem = structure.values.refusal()
        if problem is None and structure.program is None:
            problem = self._problem(structure.shown)
        if problem is not None:
            self._refuse(problem)
        if structure.program is None:
            structure.compile()

    def _problem(self, shown: Shown) -> str | None:
        """Returns why a call that was recorded cannot have a program, if that does not lie in its numbers.

        A text, since an error would keep the frames that it went through, and the tensors in these.
        """
        try:
            check(shown, shown.after.living(), derived=self._derived)
        except CompileError as error:
            return str(error.details["why"])
        return None

    def _dying(self, structure: Structure) -> list[tuple[int, str]]:
        dead = {slot for _, slot in structure.shown.tape.frees}
        inputs = structure.shown.tape.inputs
        return [(item.slot, item.name) for item in inputs if item.origin == "state" and item.slot in dead]

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns parameters by the name of their gradients."""
        return {
            f"{prefix}.{name}.grad": p for prefix, m in self._attached.modules() for name, p in m.named_parameters()
        }

    def _alone(self, name: str) -> bool:
        """Whether nothing but its parameter holds a gradient."""
        parameter = self._parameters().get(name)
        return parameter is not None and held_alone(parameter)

    # -- a call that is known ------------------------------------------------------------------------------------------

    def _run(self, begin: _Begin, records: Sequence[int] | None) -> Any:
        steps, structure = self._steps, begin.structure
        shown, program = structure.shown, structure.program
        assert program is not None

        def start() -> ProgramRun:
            return ProgramRun(
                shown.tape, steps.program_context(), begin.values, begin.hosts, set(shown.written), steps.memory,
                begin.entered, begin.begins,
            )  # fmt: skip

        def execute(run: ProgramRun) -> Any:
            parameters = self._parameters() if begin.dying or shown.grads else {}

            def let_go(slot: int) -> None:
                if slot in begin.dying:
                    parameters[begin.dying[slot]].grad = None

            counter = counter_of(torch.default_generator)
            run.run(program, steps.number, let_go, steps.offer)
            if shown.rng:  # else its state may have moved outside of steps, where no counter goes on
                torch.default_generator.manual_seed((counter + shown.drawn) % (1 << 64))
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
        self._numbers.passed(begin.look.numbers)
        self.compiled += 1
        self.reason = ""
        return result

    # -- a call that is not --------------------------------------------------------------------------------------------

    def _record(self, args: tuple[Any, ...], batch: Any, records: Sequence[int] | None) -> Any:
        steps = self._steps
        learns = steps.ready
        before, given_args = self._seen(), self._plain(args)
        start = counter_of(torch.default_generator)
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
            try:
                described_result = described(result, capture)
            except NotPlainError as error:
                reason = f"it returns {error}"
        self.recorded += 1
        end = counter_of(torch.default_generator)
        with torch.utils._python_dispatch._disable_current_modes():
            given, result = result, detached(result)
            del given
        if looks.first is not None:
            reason = looked(*looks.first)
        elif looks.drew:
            reason = "it draws random numbers of Python's or NumPy's; draw them before and pass them"
        after = self._seen()
        if not learns or before is None or after is None:
            return result
        grads = {
            name: part
            for name, p in self._parameters().items()
            if p.grad is not None and (part := Part.of(p.grad, capture.slots)) is not None and _survives(part, capture)
        }
        if reason is None and before.found != after.found:
            place = self._looking.difference(self._roots(), before, after)
            reason = f"it changes {place}; do that outside of the function"
        if isinstance(given_args, str):
            self._hinder(given_args)
            return result
        if reason is None and self._plain(args) != given_args:
            reason = "it changes its arguments; let it work on a copy"
        before.tensors.clear()
        after.tensors.clear()
        shown = Shown(
            before, after, given_args, capture.tape, set(capture.written), described_result, reason, grads,
            dict(context.rng), start, end, self._reads(looks, capture),
        )  # fmt: skip
        self._learn(shown, capture)
        return result

    def _plain(self, args: tuple[Any, ...]) -> list[Any] | str:
        """Returns what arguments have beside tensors, or why that cannot be compared."""
        try:
            return without_tensors(args, self._names)
        except NotPlainError as error:
            return f"{error}; pass tensors, plain numbers and texts, and lists, dicts and dataclasses of these"

    @unseen
    def _reads(self, looks: LooksAtResults, capture: Capture) -> Reads:
        hosts = capture.context.hosts
        return Reads.of(capture.tape, [Read(each.host, each.op, hosts[each.host], each.line) for each in looks.numbers])

    @unseen
    def _seen(self) -> Look | None:
        try:
            return self._looking.look(self._roots())
        except TooMuchError:
            return None

    def _learn(self, shown: Shown, capture: Capture) -> None:
        step = self._steps.substitution.step
        problem = self._problem(shown)
        if (entry := self._numbers.follow(shown.before.numbers, step)) is not None:
            for each in self._structures:
                each.values.forget()
            problem = problem or (
                f"{entry} of an optimizer changes from step to step by no declared formula; let a scheduler of "
                "PyTorch's set it and attach() that scheduler, or declare it with Recorder(formulas=...)"
            )
        structure, hidden = self._structures.learn(shown)
        self._hinder(problem or hidden)
        structure.values.observe(capture.values, self._steps.substitution)

    def _hinder(self, problem: str | None) -> None:
        """Notes why a recorded call could not have been a program, if it could not."""
        self._hindered = [] if problem is None else [*self._hindered[-PATIENCE:], problem]


@dataclass(slots=True)
class _Begin:
    """What the program of a call needs.

    Attributes:
        structure: Its structure.
        look: Python before it.
        flat: The tensors of its batch.
        entered: Addresses of the storages that enter, by slot.
        begins: Where the batch's windows begin.
        values: Its values.
        hosts: What it will read.
        dying: Names of the gradients that it lets go of, by slot.
    """

    structure: Structure
    look: Look
    flat: dict[str, Tensor]
    entered: dict[int, int]
    begins: dict[int, int]
    values: list[Any]
    hosts: list[Any]
    dying: dict[int, str]


def _other_arguments(before: list[Any], now: list[Any]) -> str:
    at = numbers_apart(before, now)
    if not at:
        return "other plain arguments"
    number = now[at[0]]
    assert isinstance(number, Number)
    return f"its argument {number.place} is another number than it was"


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
