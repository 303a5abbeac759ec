"""How much of PyTorch's core ATen set the table of rules covers, overload by overload.

The set: every overload that this PyTorch tags as core, every in-place and `out=` form of such an operator, every
overload of a backward, and the `_foreach_` and `_fused_` families. Collectives are no ATen overloads and are not in it,
nor are overloads that name dimensions, which older PyTorch has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch

from weighbridge.numerics.rewrites import decompositions, forms
from weighbridge.numerics.rule_table import RULES, Kind, base_name, known
from weighbridge.numerics.schemas import Op, composite

aten = torch.ops.aten


class Status(StrEnum):
    """What happens to an overload inside a recorded step."""

    RULE = "rule"
    """It has a line in the table."""
    DECOMPOSED = "decomposed"
    """A reviewed decomposition replaces it by overloads that have a rule."""
    COMPOSITE = "composite"
    """PyTorch itself makes it of other overloads, before it is dispatched."""
    REFUSED = "refused"
    """It stops the recording on floating operands, and the message says what to write instead."""
    MISSING = "missing"
    """It has no line: it stops the recording."""


@dataclass(frozen=True, slots=True)
class Line:
    """What the table does with one overload.

    Attributes:
        name: `name.overload`, in place and `out=` forms under their own names.
        group: Why it is in the set: `core`, `form`, `backward`, `foreach` or `fused`.
        status: What happens to it.
        kind: The kind of its rule, for `rule` and `refused`.
        note: For `refused`: what to write instead.
    """

    name: str
    group: str
    status: Status
    kind: str = ""
    note: str = ""


def name_of(op: Op) -> str:
    """Returns `name.overload` of an ATen overload."""
    return f"{op._schema.name.removeprefix('aten::')}.{op._overloadname or 'default'}"


def overloads() -> Iterator[Op]:
    """Yields every ATen overload of this PyTorch, by name."""
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::"):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            op = getattr(getattr(aten, packet, None), overload or "default", None)
            if isinstance(op, Op):
                yield op


def _group(op: Op, core: set[str]) -> str | None:
    name = op._schema.name.removeprefix("aten::")
    if any("str" in str(each.type) for each in op._schema.arguments if each.name in ("names", "dim")):
        return None
    if name.startswith("_foreach_"):
        return "foreach"
    if name.startswith("_fused_"):
        return "fused"
    if torch.Tag.core in op.tags:
        return "core"
    if "_backward" in name:
        return "backward"
    return "form" if name.removesuffix("_") in core else None


def _refusal(op: Op) -> str | None:
    """The advice for an overload that is refused on floating operands, by its own rule or its counterpart's."""
    if known(op):
        rule = RULES[".".join(base_name(op))]
        return rule.note if rule.kind is Kind.REFUSED else None
    other = forms.counterpart(op)
    return _refusal(other) if other is not None and forms.is_variant(op) else None


def line(op: Op, group: str = "") -> Line:
    """Returns what the table does with an overload."""
    name, advice = name_of(op), _refusal(op)
    if advice is not None:
        return Line(name, group, Status.REFUSED, Kind.REFUSED.value, advice)
    if decompositions.find(op) is not None and not known(op):
        return Line(name, group, Status.DECOMPOSED)
    if known(op):
        return Line(name, group, Status.RULE, RULES[".".join(base_name(op))].kind.value)
    return Line(name, group, Status.COMPOSITE if composite(op) else Status.MISSING)


def coverage() -> list[Line]:
    """Returns a line for every overload of the set, by name."""
    every = list(overloads())
    core = {op._schema.name.removeprefix("aten::").removesuffix("_") for op in every if torch.Tag.core in op.tags}
    return [line(op, group) for op in every if (group := _group(op, core)) is not None]


def summary(lines: list[Line]) -> dict[str, int]:
    """Returns how many lines have each status, and how many there are (`all`)."""
    counts = Counter(each.status for each in lines)
    return {**{status.value: counts[status] for status in Status}, "all": len(lines)}
