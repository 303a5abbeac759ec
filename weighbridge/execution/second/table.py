"""The table of rules: which operation is computed by which function, and what it is called with."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from weighbridge.execution.second.bounds import Bound, Floats
from weighbridge.execution.second.memory import F32, F64, Array, NotCoveredError, kind_of
from weighbridge.execution.second.signatures import PLACING, VIEWS
from weighbridge.transcript.tape import Ref


class Kind(StrEnum):
    """How the results of an operation are accounted for."""

    VIEW = "view"
    """Names memory differently."""
    MOVE = "move"
    """Copies, compares, selects or converts; has no checksum."""
    EXACT = "exact"
    """Has one right answer; a float32 result has a checksum."""
    SELECT = "select"
    """As exact, and a zero is +0."""
    ROUNDED = "rounded"
    """Computed in float64 and rounded to float32, following the log."""
    RANDOM = "random"
    """Drawn by Philox; has no checksum."""
    HOST = "host"
    """Hands a number to the program, which the record has."""
    COMPOSED = "composed"
    """A fixed sequence of exact operations and rounded sums."""


@dataclass(frozen=True, slots=True)
class Wide:
    """A result before it is rounded: its value in float64, and what its bound is, if that is asked for."""

    value: Floats
    bound: Callable[[], Bound]


class Accounting(Protocol):
    """What composed operations round their sums with, and account for their results with."""

    def rounded(self, wide: Wide, ref: Ref | None = None) -> Array:
        """Rounds a result and compares its checksum."""

    def exact(self, value: Array, ref: Ref | None = None) -> Array:
        """Compares the checksum of a result; returns it with canonical NaN."""

    def draw(self) -> tuple[int, int, int]:
        """Returns the key of the next draw: seed, stream, counter."""


@dataclass(slots=True)
class Call:
    """One operation with its operands.

    Attributes:
        name: Its name without overload, and without the underscore of what changes its operand.
        operands: By name, with defaults; tensors are views on the storages.
        refs: What the tape says of each returned value; None for what is no tensor.
        changes: Whether it changes its first operand.
        accounting: For composed and random operations.
        block: The least terms of the blocks that products are split into; 0 under policies without blocks.
    """

    name: str
    operands: dict[str, Any]
    refs: list[Ref | None]
    changes: bool
    accounting: Accounting
    block: int = 0

    def __getitem__(self, name: str) -> Any:
        return self.operands[name]

    def kind(self, index: int = 0) -> np.dtype[Any]:
        """The type of the elements of a result."""
        if self.changes:
            changed: np.dtype[Any] = self.operands["self"].dtype
            return changed
        ref = self.refs[index]
        if ref is None:
            raise NotCoveredError(f"{self.name} without a result")
        return kind_of(ref[1])

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The shape of a result, as the tape has it."""
        ref = self.refs[index]
        return () if ref is None else ref[2]

    def wide(self, name: str) -> Floats:
        """A float32 operand in float64.

        Raises:
            NotCoveredError: It is of another type.
        """
        value = self.operands[name]
        if not isinstance(value, np.ndarray) or value.dtype != F32:
            raise NotCoveredError(f"{self.name} with {name} of another type than float32")
        return value.astype(F64)

    def perhaps(self, name: str) -> Floats | None:
        """The same of an operand that may be missing."""
        return None if self.operands.get(name) is None else self.wide(name)


Function = Callable[[Call], Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of one overload.

    Attributes:
        kind: How its results are accounted for.
        names: Its positional operands.
        defaults: What operands are that a call leaves out.
        function: Computes it; None for views.
        computes: Of a move: whether it makes new numbers, whose NaN are the canonical one.
        placing: Operands by keyword beside those: where a result lies, and of which type it is.
    """

    kind: Kind
    names: tuple[str, ...]
    defaults: Mapping[str, Any]
    function: Function | None
    computes: bool = False
    placing: frozenset[str] = frozenset()

    def fits(self, count: int, keywords: Iterable[str]) -> bool:
        """Says whether so many positional operands and these keywords name operands, each once.

        Args:
            count: How many there are by position.
            keywords: Names of the others.
        """
        left = {*self.names[count:], *self.placing}
        return count <= len(self.names) and left.issuperset(keywords)

    def lacking(self, count: int, keywords: Container[str]) -> str | None:
        """Returns the first operand that a call with so many positional operands and these keywords needs and lacks."""
        left = (name for name in self.names[count:] if name not in keywords and name not in self.defaults)
        return next(left, None)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the operands by name of a call that lacks none."""
        return {**self.defaults, **dict(zip(self.names, args, strict=False)), **kwargs}


RULES: dict[str, Rule] = {}
"""Rules by `name.overload` of the form that changes nothing."""

_CONSTANTS = {"None": None, "True": True, "False": False}


def _default(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text == "[]":
        return []
    return float(text) if "." in text else int(text) if text.lstrip("-").isdigit() else text


def rule(keys: str, operands: str, kind: Kind, *, computes: bool = False) -> Callable[[Function], Function]:
    """Adds a function to the table.

    Args:
        keys: Overloads, separated by spaces.
        operands: Names of the operands in their order, with `=` and a default where a call may leave them out.
        kind: How its results are accounted for.
        computes: See `Rule`.
    """

    def put(function: Function) -> Function:
        parts = [part.partition("=") for part in operands.split()]
        names = tuple(name for name, _, _ in parts)
        defaults = {name: _default(text) for name, equals, text in parts if equals}
        for key in keys.split():
            RULES[key] = Rule(kind, names, defaults, function, computes, PLACING.get(key, frozenset()))
        return function

    return put


def base(op: str) -> tuple[str, bool]:
    """Returns the key of an operation's rule, and whether the operation changes its first operand."""
    name, _, overload = op.partition(".")
    changes = name.endswith("_") and not name.endswith("__")
    return f"{name[:-1] if changes else name}.{overload}", changes


for _line in VIEWS.split("\n"):
    if _line:
        _key, *_names = _line.split()
        _absent = {name[:-1]: None for name in _names if name.endswith("=")}
        RULES[_key] = Rule(Kind.VIEW, tuple(name.rstrip("=") for name in _names), _absent, None)
