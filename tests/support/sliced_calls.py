"""Calls of operations that are executed in part and have no examples among those whose bounds are tested."""

from __future__ import annotations

import torch
from support.operator_examples.example import Example, Maker, Op


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
