"""What each operation of a tape reads, makes and replaces, storage by storage: the alphabet of all data flow.

It is read from the overload's schema and the rule table, and from nothing that the operands hold, with one exception:
a number that a program multiplies by, or interpolates with, replaces what was there if it is 0 or 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, TypeGuard

from weighbridge.numerics.rule_table import RULES, Kind, base_name
from weighbridge.numerics.schemas import mutated
from weighbridge.program.operands import resolve
from weighbridge.transcript.tape import Node, Ref, Tape, references, resized

Replaces = Literal["no", "perhaps", "yes"]

_REPLACES = frozenset(
    {
        "copy", "fill", "zero", "normal", "uniform", "bernoulli", "random", "exponential", "log_normal", "cauchy",
        "geometric", "eye",
    }
)  # fmt: skip
"""In-place operations whose result does not depend on what was there."""

_BY_INDEX = frozenset(
    {
        "index_put", "_unsafe_index_put", "_index_put_impl", "index_copy", "index_fill", "scatter", "masked_fill",
        "masked_scatter", "put",
    }
)  # fmt: skip
"""In-place operations that write where an operand says: at a few places or everywhere, which only values tell."""

_ADDS = ("accumulate", "reduce")
"""Operands of these that make them add to what was there."""

_PLACES = frozenset({"indices", "index", "mask", "condition"})
"""Operands that say where, and bring no content of their own."""

_MOVES = frozenset({Kind.VIEW, Kind.MOVE, Kind.EMPTY, Kind.COLLECTIVE, Kind.RESIZE})

_COPIES = frozenset({"clone", "copy", "_to_copy"})

_SENT = "weighbridge::recv"
MANY = 1 << 20


class Effect(NamedTuple):
    """What one operation does.

    Attributes:
        op: Its place on the tape; the number of operations for what dies at the end.
        dies: Storages that died before it.
        grows: Storages that it gives another size: (slot, bytes).
        reads: Storages on which its results depend, those that it changes included unless they are replaced.
        given: Those of them that it does not change.
        content: Those of `given` whose content can come out: all but masks and indices.
        targets: What it writes to.
        births: Storages that it makes: (slot, bytes).
        replaces: Whether `targets` lose what was there: perhaps, if that depends on values.
        computes: Whether it calculates, and does not only move content.
        drawn: Whether it draws random numbers.
        sent: Whether another rank sends what it writes.
        numbers: How many of the step's numbers enter.
        host: Whether the program reads a value on the host, of which later numbers may be made.
    """

    op: int
    dies: tuple[int, ...]
    grows: tuple[tuple[int, int], ...] = ()
    reads: tuple[int, ...] = ()
    given: tuple[int, ...] = ()
    content: tuple[int, ...] = ()
    targets: tuple[Ref, ...] = ()
    births: tuple[tuple[int, int], ...] = ()
    replaces: Replaces = "no"
    computes: bool = False
    drawn: bool = False
    sent: bool = False
    numbers: int = 0
    host: bool = False


class _Facts(NamedTuple):
    base: str
    names: tuple[str, ...]
    changed: frozenset[str]
    view: bool
    moves: bool
    shapes: bool
    host: bool


def effects(tape: Tape, zeros: frozenset[int] = frozenset(), ones: frozenset[int] = frozenset()) -> list[Effect]:
    """Says what the operations of a tape do; those that only name memory differently are left out.

    Args:
        tape: A decoded tape.
        zeros: Positions of the values vector that hold 0 in some step.
        ones: Those that hold 1.

    Raises:
        TapeError: It names an operation that is not allowed.
    """
    frees: dict[int, list[int]] = {}
    for at, slot in tape.frees:
        frees.setdefault(at, []).append(slot)
    known: dict[str, _Facts] = {}
    same = _Same()
    found, dies = [], list[int]()
    for index, node in enumerate(tape.nodes):
        dies += frees.get(index, ())
        if grows := resized(tape, node):
            found.append(Effect(index, tuple(dies), tuple(grows)))
            dies = []
            continue
        if node.op not in known:
            known[node.op] = _facts(node.op)
        facts = known[node.op]
        if facts.view and not node.births:
            continue
        effect = _effect(tape, index, node, facts, tuple(dies), zeros, ones, same)
        same.after(effect, facts.base)
        found.append(effect)
        dies = []
    found.append(Effect(len(tape.nodes), (*dies, *frees.get(len(tape.nodes), ()))))
    return found


def telling(tape: Tape) -> set[int]:
    """Positions of the values vector that decide, by being 0 or 1, whether an operation replaces what was there."""
    found = set()
    for node in tape.nodes:
        base = node.op.partition(".")[0]
        if base in ("mul_", "lerp_"):
            found |= {value[1] for value in (*node.args[1:], *node.kwargs.values()) if _is_value(value)}
    return found


def _facts(name: str) -> _Facts:
    op = resolve(name)
    base, overload = base_name(op)
    rule = RULES.get(f"{base}.{overload}")
    kind = None if rule is None else rule.kind
    names = tuple(a.name for a in op._schema.arguments)
    shapes = kind is Kind.EMPTY or base.endswith("_like") or base.startswith("new_")
    return _Facts(base, names, frozenset(mutated(op)), kind is Kind.VIEW, kind in _MOVES, shapes, kind is Kind.HOST)


def _effect(
    tape: Tape, index: int, node: Node, facts: _Facts, dies: tuple[int, ...], zeros: frozenset[int],
    ones: frozenset[int], same: _Same,
) -> Effect:  # fmt: skip
    bound = dict([*zip(facts.names, node.args, strict=False), *node.kwargs.items()])
    replaces = _replaces(facts.base, bound, zeros, ones)
    fixed = facts.base == "clamp" and _pinned(tape, bound, same)
    moves = facts.moves or (facts.base in _BY_INDEX and replaces != "no")
    reads, given, content = dict[int, None](), dict[int, None](), dict[int, None]()
    targets, numbers = list[Ref](), 0
    for name, operand in bound.items():
        if name not in facts.changed:
            numbers += _values(operand)
        for r in references(operand):
            ref = tape.refs[r]
            if name in facts.changed:
                targets.append(ref)
                if replaces == "yes":
                    continue
            if 0 in ref[2] or facts.shapes or (fixed and name == "self"):
                continue
            reads[ref[0]] = None
            if name not in facts.changed:
                given[ref[0]] = None
                if name not in _PLACES:
                    content[ref[0]] = None
    return Effect(
        index, dies, (), tuple(reads), tuple(given), tuple(content), tuple(targets), node.births,
        "yes" if fixed and targets else replaces, not (moves or fixed), node.draw is not None, facts.base == _SENT,
        min(numbers, MANY), facts.host,
    )  # fmt: skip


def _replaces(base: str, bound: Mapping[str, object], zeros: frozenset[int], ones: frozenset[int]) -> Replaces:
    if base in _REPLACES:
        return "yes"
    if base in _BY_INDEX:
        return "no" if any(bound.get(name) for name in _ADDS) else "perhaps"
    if (base == "mul" and _among(bound.get("other"), zeros)) or (base == "lerp" and _among(bound.get("weight"), ones)):
        return "perhaps"
    return "no"


def _among(operand: object, positions: frozenset[int]) -> bool:
    return _is_value(operand) and operand[1] in positions


class _Same:
    """Which storages hold the same content, because one was copied from the other."""

    def __init__(self) -> None:
        self._version: dict[int, int] = {}
        self._next = -1

    def of(self, slot: int) -> int:
        """Returns a number that two storages share if one is a copy of the other."""
        return self._version.get(slot, slot)

    def after(self, effect: Effect, base: str) -> None:
        """Follows an operation."""
        copied = self.of(effect.content[0]) if base in _COPIES and len(effect.content) == 1 else None
        for slot in (*(slot for slot, _ in effect.births), *(ref[0] for ref in effect.targets)):
            self._version[slot] = self._next if copied is None else copied
            self._next -= copied is None


def _pinned(tape: Tape, bound: Mapping[str, object], same: _Same) -> bool:
    """Whether both bounds of a clamp hold the same content: then that comes out."""
    low, high = references(bound.get("min")), references(bound.get("max"))
    if len(low) != 1 or len(high) != 1:
        return False
    return same.of(tape.refs[low[0]][0]) == same.of(tape.refs[high[0]][0])


def _is_value(operand: object) -> TypeGuard[tuple[str, int]]:
    return isinstance(operand, tuple) and len(operand) == 2 and operand[0] == "v"


def _values(operand: object) -> int:
    """How many entries of the values vector an encoded operand names."""
    return sum(1 for _ in _each_value(operand))


def _each_value(operand: object) -> Iterator[object]:
    if _is_value(operand):
        yield operand
    elif isinstance(operand, tuple):
        for inner in operand:
            yield from _each_value(inner)
