"""What a capture needs to know of an overload, computed once per overload and not once per call."""

from __future__ import annotations

from typing import NamedTuple

from weighbridge.numerics.overload_cache import per_op
from weighbridge.numerics.rewrites import decompositions
from weighbridge.numerics.rewrites.rewrite_table import Condition, Decomposition
from weighbridge.numerics.rule_table import Rule, known, settled
from weighbridge.numerics.schemas import Op, composite, mutated

_NUMBER_TYPES = ("number", "Scalar", "Optional[number]", "Optional[Scalar]", "Tensor", "Optional[Tensor]")
_COUNTING = frozenset({"arange", "range", "linspace", "logspace"})


class Overload(NamedTuple):
    """What is known of an overload whatever its operands.

    Attributes:
        name: Its name on a tape.
        positions: Places of the operands whose integers are values, not structure: of scalars, and of tensors in whose
            place there is a number.
        names: Names of the same.
        computes: Whether it only computes with such numbers, instead of making as many elements as they say.
        mutated: Names of the operands that it changes.
        aside: Whether it is nothing that a tape has.
        decomposition: What replaces it, or None.
        unless: Says for which operands nothing does, or None.
        composite: Whether PyTorch replaces it.
        rule: Its rule, or None if its operands decide.
    """

    name: str
    positions: frozenset[int]
    names: frozenset[str]
    computes: bool
    mutated: tuple[str, ...]
    aside: bool
    decomposition: Decomposition | None
    unless: Condition | None
    composite: bool
    rule: Rule | None


@per_op
def overload(op: Op) -> Overload:
    """Returns what is known of an overload."""
    at = [(i, a.name) for i, a in enumerate(op._schema.arguments) if str(a.type) in _NUMBER_TYPES]
    # Of the first two PyTorch's dispatcher knows little; the last says where memory lies, and not what it holds.
    aside = op.namespace in ("prim", "profiler") or op._schema.name == "aten::is_pinned"
    return Overload(
        name=f"{op._schema.name.removeprefix('aten::')}.{op._overloadname or 'default'}",
        positions=frozenset(i for i, _ in at),
        names=frozenset(n for _, n in at),
        computes=op._schema.name.removeprefix("aten::") not in _COUNTING,
        mutated=mutated(op),
        aside=aside,
        decomposition=decompositions.find(op),
        unless=decompositions.unless(op),
        composite=not aside and not known(op) and composite(op),
        rule=settled(op),
    )
