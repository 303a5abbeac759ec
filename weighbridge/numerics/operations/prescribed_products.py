"""Products whose order of summation the policy prescribes: of matrices in blocks, or as a matrix unit has them.

This is the only place where that is decided: recording, compiled steps, replays on any device, logs that are made on
demand and disputes all come here. What is prescribed follows from shapes, types and the policy alone. Operations that
add something to a product add it last, with a multiplication and an addition of their own.

*In blocks* (float64): a library adds the terms of a block in whatever order it likes, and bounds count fewer roundings
(`weighbridge.numerics.arrays.blocked_products`). *As a unit* (16 bits, computed in float32): every bit is prescribed
(`weighbridge.numerics.units.fused_products`), so the result has no bound but zero: no machine may round it otherwise.
Convolutions of 16 bits are such products too (`prescribed_convolutions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.arrays import blocked_products
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.operations import prescribed_convolutions
from weighbridge.numerics.overload_cache import per_op
from weighbridge.numerics.rule_table import base_name
from weighbridge.numerics.schemas import Op, bind, mutated
from weighbridge.numerics.units import fused_products

Tensor = torch.Tensor
_PRESCRIBED: dict[tuple[str, str], tuple[Callable[..., Tensor], str, str, int]] = {
    ("mm", "default"): (torch.mm, "self", "mat2", 2),
    ("addmm", "default"): (torch.mm, "mat1", "mat2", 2),
    ("bmm", "default"): (torch.bmm, "self", "mat2", 3),
    ("baddbmm", "default"): (torch.bmm, "batch1", "batch2", 3),
    ("mv", "default"): (torch.mv, "self", "vec", 2),
    ("addmv", "default"): (torch.mv, "mat", "vec", 2),
}
"""Overload: its product, the operands of that, and how many dimensions the first has."""
_CONVOLUTIONS: dict[tuple[str, str], Callable[[Mapping[str, Any]], Any]] = {
    ("convolution", "default"): prescribed_convolutions.forward,
    ("convolution_backward", "default"): prescribed_convolutions.backward,
}
"""What a unit computes besides; they are not split into blocks."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a product is summed.

    Attributes:
        block: The least terms of the blocks that it is split into; 0 if it is not.
        exact: Whether it is a matrix unit's, to the bit.
    """

    block: int = 0
    exact: bool = False


FREE = Way()
"""As the library pleases."""
_EXACT = Way(exact=True)


@per_op
def _plan(op: Op) -> tuple[Callable[..., Tensor], str, str, int] | None:
    return _PRESCRIBED.get(base_name(op))


@per_op
def _convolution(op: Op) -> Callable[[Mapping[str, Any]], Any] | None:
    return _CONVOLUTIONS.get(base_name(op))


def way_for(op: Op, operands: Iterable[Any], policy: Policy, wide: torch.dtype) -> Way:
    """Returns what `way_of` does, for operands as they were before they were widened.

    Raises:
        RefusedOperationError: A unit is to multiply numbers of more than one type, as no PyTorch does; float32 among
            them has more bits than its products can have.
    """
    way = way_of(op, policy, wide)
    if way.exact and len(types := {v.dtype for v in operands if isinstance(v, Tensor)}) > 1:
        raise RefusedOperationError(f"{op} on {', '.join(sorted(map(str, types)))}: use one type", operation=str(op))
    return way


def way_of(op: Op, policy: Policy, wide: torch.dtype) -> Way:
    """Returns how a policy has an operation summed that is computed in a wide type.

    What is computed in float32 is not split: its bounds were measured on whole products. A unit multiplies nothing but
    16-bit types, and these are what is computed in float32.
    """
    if not policy.block and not policy.unit:
        return FREE
    if wide is torch.float64:
        return Way(block=policy.block) if _plan(op) is not None else FREE
    return _EXACT if policy.unit and (_plan(op) is not None or _convolution(op) is not None) else FREE


def evaluate(op: Op, args: Sequence[Any], kwargs: dict[str, Any], way: Way) -> Any:
    """Returns what an operation returns for wide operands, summed as it is prescribed."""
    if way == FREE:
        return op(*args, **kwargs)
    plan, convolution = _plan(op), _convolution(op)
    if convolution is not None:
        empty = any(isinstance(v, Tensor) and not v.numel() for v in args)
        return op(*args, **kwargs) if empty else convolution(bind(op, args, kwargs))
    if plan is None:
        return op(*args, **kwargs)
    product, first, second, dimensions = plan
    bound = bind(op, args, kwargs)
    a, b, added = bound[first], bound[second], None if first == "self" else bound["self"]
    fits = a.dim() == dimensions and b.dim() == dimensions - (product is torch.mv)
    fits = fits and a.shape[:-2] == b.shape[: dimensions - 2] and b.shape[dimensions - 2] == a.shape[-1]
    unseen = added is not None and bound["alpha"] == 0
    total = _total(product, a, b, way, unseen=unseen) if fits else None
    if total is None:
        return op(*args, **kwargs)  # which also says what does not fit, and looks at no product times 0
    if added is None:
        return total
    if bound["alpha"] != 1:
        total *= bound["alpha"]
    if bound["beta"] != 0:  # else the operand does not count, whatever it is
        total += added if bound["beta"] == 1 else added * bound["beta"]
    if not mutated(op):
        return total
    return added.copy_(total) if added.shape == total.shape else op(*args, **kwargs)


def _total(product: Callable[..., Tensor], a: Tensor, b: Tensor, way: Way, *, unseen: bool) -> Tensor | None:
    """Returns a product as it is prescribed, or None where the library's own is as good.

    One that is not seen, because it is multiplied by 0, is zeros: some kernels make NaN of what is infinite there.
    """
    if unseen:
        return a.new_zeros((*a.shape[:-1], *b.shape[a.dim() - 1 :])) if way.exact else None
    if way.exact:
        return fused_products.product(a, b[:, None])[:, 0] if product is torch.mv else fused_products.product(a, b)
    terms = a.shape[-1]
    if terms <= way.block:
        return None
    return blocked_products.split(product, a, b, blocked_products.length(terms, way.block))
