"""Whether the next call of a function is known before it runs, and what its program needs then."""

from __future__ import annotations

import gc
import warnings
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from prover.capture.gradient_memory import held_alone
from prover.capture.python_objects import Look, TooMuchError
from prover.capture.without_modes import unseen
from prover.recording.compile_refusal import refused
from prover.recording.generator_moves import places
from prover.recording.known_function import PATIENCE, KnownFunction
from prover.recording.known_values import read_ahead
from prover.recording.plain_arguments import Number, numbers_apart
from prover.recording.step_runner import as_program
from prover.recording.structure import NotPlainError, Structure
from weighbridge.core.errors import RefusedOperationError
from weighbridge.program.operands import tensor
from weighbridge.transcript.data import flatten
from weighbridge.transcript.tape import absolute_name

Tensor = torch.Tensor


class NotKnownError(Exception):
    """Something about the next call is not known; the text says what."""


class _ReadsOtherwiseError(NotKnownError):
    """The next call reads another number than those before it, if it is the structure that was looked at."""


@dataclass(slots=True)
class Begin:
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
        generators: Those that its tape draws from, by number.
    """

    structure: Structure
    look: Look
    flat: dict[str, Tensor]
    entered: dict[int, int]
    begins: dict[int, int]
    values: list[Any]
    hosts: list[Any]
    dying: dict[int, str]
    generators: dict[int, torch.Generator]


class NextCall:
    """Looks at one call after another.

    Attributes:
        compiled: Calls that ran as programs.
    """

    def __init__(self, known: KnownFunction) -> None:
        """Prepares for the calls of a function."""
        self.compiled = 0
        self._known = known
        self._warned = False

    @unseen
    def begin(self, args: tuple[Any, ...], batch: Any) -> Begin:
        """Looks whether the next call is known; returns what its program needs.

        Raises:
            NotKnownError: It is not.
            CompileError: It never will be.
        """
        steps = self._known.steps
        if not steps.ready:
            raise NotKnownError("the recording computes again what a crash interrupted, or has not begun")
        if not self._known.structures and not self._known.hindered:
            raise NotKnownError("this is the first call")
        if len(self._known.hindered) >= PATIENCE:
            self._refuse(self._known.hindered[-1])
        gc.collect()
        flat = dict(flatten(batch))
        if any(t.untyped_storage()._cdata in steps.state.names or t.requires_grad for t in flat.values()):
            raise NotKnownError("its arguments are state, or need gradients")
        try:
            look = self._known.looking.look(self._known.roots())
            arguments, generators = self._known.arguments(args, look)
        except (TooMuchError, NotPlainError) as error:
            raise NotKnownError(str(error)) from None
        reasons: list[NotKnownError] = []
        for structure in self._alike(look, arguments):
            entering = self._entering(structure, flat)
            if entering is None:
                continue
            try:
                return self._prepared(structure, look, flat, generators, *entering)
            except NotKnownError as error:
                if not structure.shown.reads.each:  # else a structure that reads other numbers may be the right one
                    raise
                reasons.append(error)
        reasons.sort(key=lambda each: isinstance(each, _ReadsOtherwiseError))
        raise reasons[0] if reasons else NotKnownError("its arguments, or what lives, have other shapes or places")

    def _prepared(
        self, structure: Structure, look: Look, flat: dict[str, Tensor], generators: list[torch.Generator],
        entered: dict[int, int], begins: dict[int, int],
    ) -> Begin:  # fmt: skip
        """Returns what the program of a call needs, if the call goes on as a structure that it begins like.

        Raises:
            NotKnownError: It does not, or that is not known.
            CompileError: The structure cannot have a program.
        """
        steps = self._known.steps
        self._accept(structure)
        if not structure.starts_at(places(generators)):
            raise NotKnownError("a generator of PyTorch's is not where it was before each such call so far")
        if not steps.stand(structure.shown.groups):
            raise NotKnownError("a process group that it used is no longer there")
        step = steps.substitution.explaining(steps.updates + 1, (), steps.derived.counts())
        if (changed := self._known.numbers.unexplained(look.numbers, step)) is not None:
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
        sources = shown.moves.sources(generators)
        return Begin(structure, look, flat, entered, begins, values, hosts, dying, sources)

    def _alike(self, look: Look, arguments: list[Any]) -> list[Structure]:
        """Returns the structures that begin as the next call does, but for its batch."""
        alike = self._known.structures.alike(look, arguments)
        if not alike:
            last = self._known.structures.last
            place = self._known.looking.difference(self._known.roots(), last.before, look)
            raise NotKnownError(
                "other gradients exist" if place is None and last.before.grads != look.grads
                else _other_arguments(last.arguments, arguments) if place is None else f"{place} is not as it was"
            )  # fmt: skip
        return alike

    def _entering(self, structure: Structure, flat: dict[str, Tensor]) -> tuple[dict[int, int], dict[int, int]] | None:
        steps, tape = self._known.steps, structure.shown.tape
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
            if steps.relative(name) != item.name:  # of a job it depends on what the last step used
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
            last = f"; and of the last one: {self._known.hindered[-1]}" if self._known.hindered else ""
            raise NotKnownError("only one call began like this so far, or since a number was set" + last)
        problem = structure.values.refusal()
        if problem is None and structure.program is None:
            problem = self._known.problem(structure.shown)
        if problem is not None:
            self._refuse(problem)
        if structure.program is None:
            self._known.structures.compile(structure)

    def _dying(self, structure: Structure) -> list[tuple[int, str]]:
        dead = {slot for _, slot in structure.shown.tape.frees}
        inputs = structure.shown.tape.inputs
        return [(item.slot, item.name) for item in inputs if item.origin == "state" and item.slot in dead]

    def _alone(self, name: str) -> bool:
        """Whether nothing but its parameter holds a gradient."""
        parameter = self._known.parameters().get(name)
        return parameter is not None and held_alone(parameter)


def _other_arguments(before: list[Any], now: list[Any]) -> str:
    at = numbers_apart(before, now)
    if not at:
        return "other plain arguments"
    number = now[at[0]]
    assert isinstance(number, Number)
    return f"its argument {number.place} is another number than it was"
