"""Calls of operations that are executed in part, also of those without examples for the test of bounds."""

from __future__ import annotations

from typing import Any

import torch
from support.operator_examples import EXAMPLES
from support.operator_examples.example import Example, Maker, Op


def calls(key: str, make: Maker) -> list[Example]:
    """Returns calls of an overload: its examples, or operands as its schema asks for them."""
    if key in EXAMPLES:
        return list(EXAMPLES[key](make))
    name, op = key.partition(".")[0], overload(key)
    if found := calls_of(name, op, make):
        return found
    args: list[Any] = []
    for number, argument in enumerate(
        a for a in op._schema.arguments if not a.has_default_value() and not a.kwarg_only
    ):
        x = make(5, 7) if number == 0 else make(7)
        kind = str(argument.type)
        if "Tensor" not in kind:
            args.append(0.75)
        elif argument.name in ("mask", "condition") or name.startswith("logical"):
            args.append(x > 0)
        elif name.startswith("bitwise"):
            args.append((x.clamp(-100, 100) * 8).to(torch.int64))
        else:
            args.append(make() if key == "masked_fill.Tensor" and number == 2 else x)
    limits: dict[str, dict[str, Any]] = {"clamp.default": {"min": -0.5}, "clamp.Tensor": {"min": make(7)}}
    limits |= {each: {"rounding_mode": "floor"} for each in ("div.Scalar_mode", "div.Tensor_mode")}
    return [Example(op, tuple(args), limits.get(key, {}))]


def overload(key: str) -> torch._ops.OpOverload:
    """Returns the overload of a line of the table."""
    name, _, rest = key.partition(".")
    found = getattr(getattr(torch.ops.aten, name), rest)
    assert isinstance(found, torch._ops.OpOverload)
    return found


def calls_of(name: str, op: Op, make: Maker) -> list[Example]:
    """Returns calls of an overload that moves planes, sorts, or writes where an index says; none of another one.

    Args:
        name: Its name without the overload.
        op: The overload.
        make: Makes operands.
    """
    if name.startswith("bitwise") and op._overloadname == "Scalar":
        return [Example(op, ((make(5, 7).clamp(-100, 100) * 8).to(torch.int64), 5))]
    if name == "sort":
        ties = make(5, 7).round()
        return [Example(op, (x,), {"stable": True, "dim": dim}) for x in (make(5, 7), ties) for dim in (0, -1)]
    if name == "scatter":
        index = torch.stack([torch.randperm(6, generator=make.generator)[:4] for _ in range(3)], dim=1)
        writes = make(4, 5) if op._overloadname == "src" else 0.5
        return [Example(op, (make(6, 5), 0, index, writes)), Example(op, (make(5, 6), 1, index.t(), _turned(writes)))]
    if "upsample" not in name and "pad" not in name and "max_pool" not in name:
        return []
    count = next(number for number in (1, 2, 3) if f"{number}d" in name)
    x = make(2, 3, *range(4, 4 + count))
    if "upsample" in name:
        return [Example(op, (x, list(range(7, 7 + count))))]
    if "pad" in name:
        return [Example(op, (each, [1, 2] * count)) for each in (x, x[0])]
    sizes = [2] * count
    return [Example(op, (each, sizes)) for each in (x, x[0])]


def _turned(writes: torch.Tensor | float) -> torch.Tensor | float:
    return writes.t() if isinstance(writes, torch.Tensor) else writes
