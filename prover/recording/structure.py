"""What a step shows that was recorded operation by operation: its tape, and what running that tape must put back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, RMSprop
from torch.optim.lr_scheduler import ReduceLROnPlateau

from prover.capture.group_uses import GroupUse
from prover.capture.in_progress import InProgress
from prover.capture.python_objects import Look
from prover.recording.compile_refusal import refused
from prover.recording.foreseen_reads import Reads
from prover.recording.generator_moves import Moves
from prover.recording.known_values import READING, Counter, KnownValues, counters
from weighbridge.execution.straight_line.program import Program, straight
from weighbridge.numerics.rule_table import base_name
from weighbridge.program.operands import SHAPED_BY_VALUES, resolve
from weighbridge.transcript.tape import Input, Node, Ref, Tape, references

Tensor = torch.Tensor

LONGEST = 64
"""Most operations between two safepoints."""

OPTIMIZERS = frozenset({SGD, Adam, AdamW, Adamax, Adagrad, Adadelta, RMSprop})
"""Those whose `step` computes with what it reads and decides nothing by it."""

_MASKS = frozenset({"bool", "u8"})


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor on a storage that a step made.

    Attributes:
        slot: The storage's slot.
        dtype: The tensor's type.
        size: Its size.
        stride: Its stride.
        offset: Its offset, in elements.
    """

    slot: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, t: Tensor, slots: Mapping[int, int]) -> Part | None:
        """Returns what a tensor is, given slots of storages by address; None if its storage is none of them."""
        slot = slots.get(t.untyped_storage()._cdata)
        return None if slot is None else cls(slot, t.dtype, tuple(t.shape), t.stride(), int(t.storage_offset()))


class NotPlainError(Exception):
    """A function returns something that no program can return."""


def described(value: Any, capture: InProgress) -> Any:
    """Returns what a function returned, with parts in place of tensors.

    Raises:
        NotPlainError: No program can return it.
    """
    if isinstance(value, Tensor):
        part = Part.of(value, capture.slots) if type(value) is Tensor and value.layout is torch.strided else None
        if part is None or part.slot in {item.slot for item in capture.tape.inputs}:
            raise NotPlainError("a tensor that the step did not make; return what it computed")
        return part
    if type(value) in (list, tuple):
        return type(value)([described(each, capture) for each in value])
    if type(value) is dict:
        return {key: described(each, capture) for key, each in value.items()}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise NotPlainError(f"a {type(value).__name__}; return tensors, numbers, and lists, tuples and dicts of these")


def detached(value: Any) -> Any:
    """Returns what a function returned with no graph behind it."""
    if isinstance(value, Tensor):
        return value.detach()
    if type(value) in (list, tuple):
        return type(value)([detached(each) for each in value])
    if type(value) is dict:
        return {key: detached(each) for key, each in value.items()}
    return value


@dataclass(slots=True)
class Shown:
    """What one recorded step showed.

    Attributes:
        before: Python before it.
        after: Python after it.
        arguments: What it was called with, without tensors.
        tape: Its tape.
        written: Slots of the storages that its operations changed.
        result: What the function returned, with parts in place of tensors.
        reason: Why it cannot be compiled, if that showed while it ran.
        grads: The gradients that it made, by the name of the parameter.
        moves: What it did to generators.
        reads: What its function read.
        groups: The process groups of its collectives.
    """

    before: Look
    after: Look
    arguments: list[Any]
    tape: Tape
    written: set[int]
    result: Any
    reason: str | None
    grads: dict[str, Part]
    moves: Moves
    reads: Reads
    groups: list[GroupUse] = field(default_factory=list)

    def alike(self, other: Shown) -> bool:
        """Whether two steps began alike."""
        return (
            self.before.found == other.before.found
            and self.before.grads == other.before.grads
            and self.arguments == other.arguments
        )

    def begins_like(self, other: Shown) -> bool:
        """Whether two steps began alike, batch included."""
        one, two = self.tape, other.tape
        return self.alike(other) and one.batch_views == two.batch_views and _entering(one) == _entering(two)

    def same(self, other: Shown) -> bool:
        """Whether two steps that began alike went on alike."""
        return (
            self.tape == other.tape
            and self.reads.same(other.reads)
            and self.groups == other.groups
            and self.after.found == other.after.found
            and self.after.grads == other.after.grads
            and self.result == other.result
            and self.grads == other.grads
            and self.moves.same(other.moves)
            and self.went() == other.went()
        )

    def went(self) -> set[int]:
        """Returns the schedulers that made a step within it, by identity."""
        before, after = self.before.schedules, self.after.schedules
        return {each for each in after if before.get(each) != after[each]}


@dataclass(slots=True)
class Structure:
    """Steps that began alike and had one tape.

    Attributes:
        shown: The last one that was recorded operation by operation.
        values: Their numbers.
        program: The tape as a program, once it is.
        counters: What its optimizers read.
    """

    shown: Shown
    values: KnownValues
    program: Program | None = None
    counters: list[Counter] = field(default_factory=list)
    starts: list[int | None] = field(init=False)
    """Where each generator was before all of them; None where that was not one place."""

    def __post_init__(self) -> None:
        self.starts = list(self.shown.moves.starts)

    def show(self, shown: Shown) -> None:
        """Takes in another step of its own."""
        shown.tape = self.shown.tape  # one object for equal ones
        self.shown = shown
        self.program = self.program if shown.reason is None else None
        both = zip(self.starts, shown.moves.starts, strict=True)
        self.starts = [known if known == start else None for known, start in both]

    def starts_at(self, starts: Sequence[int]) -> bool:
        """Whether a step may begin with generators there: where all began, or anywhere if they began at two places."""
        both = zip(self.starts, starts, strict=False)
        return len(starts) == len(self.starts) and all(known is None or known == start for known, start in both)

    def compile(self, program: Program | None) -> None:
        """Makes the program of a structure that `check` accepts, or takes that which its tape has already."""
        self.counters = counters(self.shown.tape, self.shown.reads.operations)
        self.program = program or Program(self.shown.tape, LONGEST)


def check(shown: Shown, schedulers: Mapping[int, Any], *, derived: bool) -> None:
    """Checks that what a step showed can be put back without running its function.

    Args:
        shown: What it showed.
        schedulers: Those of PyTorch's that the function or what is attached leads to, by identity.
        derived: Whether formulas are those that the Recorder reads from optimizers.

    Raises:
        CompileError: It cannot be.
    """
    for each in shown.after.kinds:
        if each not in OPTIMIZERS:
            names = ", ".join(sorted(kind.__name__ for kind in OPTIMIZERS))
            raise refused(
                f"nothing is known of how {each.__qualname__} computes with numbers; optimizers may be PyTorch's "
                + names
            )
    if shown.after.iterator is not None:
        raise refused(
            f"it leads to a {shown.after.iterator}, of which nothing tells how far it is; pass what that gives"
        )
    _check_tape(shown.tape)
    why = shown.reason or shown.reads.refusal
    if why is not None:
        raise refused(why)
    _check_survivors(shown)
    why = shown.moves.refusal()
    if why is not None:
        raise refused(why)
    _check_schedulers(shown, schedulers)
    if counters(shown.tape, shown.reads.operations) and not derived:
        raise refused("it reads counters of optimizers, and formulas= leaves out what is computed from these")


def _check_schedulers(shown: Shown, schedulers: Mapping[int, Any]) -> None:
    went = shown.went()
    for identity in went:
        kind = type(schedulers[identity]) if identity in schedulers else type(None)
        if kind.__module__ != "torch.optim.lr_scheduler" or kind is ReduceLROnPlateau:
            raise refused("a scheduler that it steps is not one of PyTorch's that go by steps; step it outside")
        one, other = shown.before.schedules.get(identity, ()), shown.after.schedules[identity]
        if tuple(a + 1 for a in one) != other:
            raise refused("it steps a scheduler more than once; step it outside")
    if not went and shown.before.numbers != shown.after.numbers:
        raise refused("it sets a number of an optimizer's groups; let a scheduler of PyTorch's do that")


def _entering(tape: Tape) -> list[Input]:
    return [item for item in tape.inputs if item.origin in ("dropped", "batch")]


def _check_tape(tape: Tape) -> None:
    if not straight(tape):
        raise refused("it resizes memory, as FSDP2 does")
    batch = {item.slot for item in tape.inputs if item.origin == "batch"}
    dead = {slot for _, slot in tape.frees}
    for item in tape.inputs:
        if item.origin == "free" and (item.bytes or item.slot not in dead):  # PyTorch makes some that hold nothing
            raise refused(
                "it takes in a tensor that is neither state nor in its arguments; attach() that tensor or pass it"
            )
    if any(slot in batch for _, slot in tape.frees):
        raise refused("it lets go of its arguments")
    for node in tape.nodes:
        name = base_name(resolve(node.op))[0]
        if node.op not in READING and (name in SHAPED_BY_VALUES or _masked(name, node, tape.refs)):
            raise refused(f"the shape of what {node.op} returns depends on what it is given")


def _masked(name: str, node: Node, refs: list[Ref]) -> bool:
    return name in ("index", "_unsafe_index") and any(refs[i][1] in _MASKS for i in references(node.args[1:]))


def _check_survivors(shown: Shown) -> None:
    held = {part.slot for part in _parts(shown.result)} | {part.slot for part in shown.grads.values()}
    for slot, name in shown.tape.survivors:
        if slot not in held:
            raise refused(
                f"memory that it made ({name}) outlives it and is neither returned nor a gradient; the graph of a loss "
                "without backward() holds such memory, and so does whatever keeps results"
            )
    dead = {slot for _, slot in shown.tape.frees}
    for item in shown.tape.inputs:
        if item.origin == "state" and item.slot in dead and not item.name.endswith(".grad"):
            raise refused(f"it lets go of {item.name}")


def _parts(value: Any) -> list[Part]:
    if isinstance(value, Part):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [part for each in inner for part in _parts(each)]
