"""Products of matrices under policies with blocks: which operations are split, and how they are evaluated then.

This is the only place where they are split: recording, compiled steps, replays on any device, logs that are made on
demand and disputes all come here. Splits follow from shapes and the policy's block alone. Operations that add something
to a product add it last, with a multiplication and an addition of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weighbridge.numerics.arrays import blocked_products
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.overload_cache import per_op
from weighbridge.numerics.rule_table import base_name
from weighbridge.numerics.schemas import Op, bind, mutated

Tensor = torch.Tensor
_SPLIT: dict[tuple[str, str], tuple[Callable[..., Tensor], str, str, int]] = {
    ("mm", "default"): (torch.mm, "self", "mat2", 2),
    ("addmm", "default"): (torch.mm, "mat1", "mat2", 2),
    ("bmm", "default"): (torch.bmm, "self", "mat2", 3),
    ("baddbmm", "default"): (torch.bmm, "batch1", "batch2", 3),
    ("mv", "default"): (torch.mv, "self", "vec", 2),
    ("addmv", "default"): (torch.mv, "mat", "vec", 2),
}
"""Overload: the product of a block, its operands, and how many dimensions the first has."""


@per_op
def _plan(op: Op) -> tuple[Callable[..., Tensor], str, str, int] | None:
    return _SPLIT.get(base_name(op))


def block_of(op: Op, policy: Policy, wide: torch.dtype) -> int:
    """Returns the least terms of the blocks that an operation is split into, or 0 where it is evaluated as it is.

    What is computed in float32 is not split: its bounds were measured on whole products.
    """
    return policy.block if wide is torch.float64 and _plan(op) is not None else 0


def evaluate(op: Op, args: Sequence[Any], kwargs: dict[str, Any], block: int) -> Any:
    """Returns what an operation returns for wide operands, split if `block` is not 0 and its sums have more terms."""
    plan = _plan(op) if block else None
    if plan is None:
        return op(*args, **kwargs)
    product, first, second, dimensions = plan
    bound = bind(op, args, kwargs)
    a, b, added = bound[first], bound[second], None if first == "self" else bound["self"]
    fits = a.dim() == dimensions and b.dim() == dimensions - (product is torch.mv)
    terms = a.shape[-1] if fits else 0
    same = fits and b.shape[-1 if product is torch.mv else -2] == terms
    if not same or terms <= block or (added is not None and bound["alpha"] == 0):
        return op(*args, **kwargs)  # which also says what does not fit, and looks at no product times 0
    total = blocked_products.split(product, a, b, blocked_products.length(terms, block))
    if added is None:
        return total
    if bound["alpha"] != 1:
        total *= bound["alpha"]
    if bound["beta"] != 0:  # else the operand does not count, whatever it is
        total += added if bound["beta"] == 1 else added * bound["beta"]
    if not mutated(op):
        return total
    return added.copy_(total) if added.shape == total.shape else op(*args, **kwargs)
