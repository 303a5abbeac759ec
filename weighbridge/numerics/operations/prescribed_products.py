"""Products whose order of summation the policy prescribes: of matrices in blocks, or as a matrix unit has them.

This is the only place where that is decided: recording, compiled steps, replays on any device, logs that are made on
demand and disputes all come here. What is prescribed follows from shapes, types and the policy alone. Operations that
add something to a product add it last, with a multiplication and an addition of their own.

*In blocks* (float64): a library adds the terms of a block in whatever order it likes, and bounds count fewer roundings
(`weighbridge.numerics.arrays.blocked_products`). *As a unit* (16 bits, computed in float32): every bit is prescribed
(`weighbridge.numerics.units.fused_products`), so the result has no bound but zero: no machine may round it otherwise.
Of a unit that truncates, that is so of long sums only; others have the unit's own bound (`unit_limits`). Convolutions
of 16 bits are such products too (`prescribed_convolutions`).
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
from weighbridge.numerics.units.declared_products import DeclaredProducts

Tensor = torch.Tensor
Multiply = prescribed_convolutions.Multiply
_PRESCRIBED: dict[tuple[str, str], tuple[Callable[..., Tensor], str, str, int]] = {
    ("mm", "default"): (torch.mm, "self", "mat2", 2),
    ("addmm", "default"): (torch.mm, "mat1", "mat2", 2),
    ("bmm", "default"): (torch.bmm, "self", "mat2", 3),
    ("baddbmm", "default"): (torch.bmm, "batch1", "batch2", 3),
    ("mv", "default"): (torch.mv, "self", "vec", 2),
    ("addmv", "default"): (torch.mv, "mat", "vec", 2),
}
"""Overload: its product, the operands of that, and how many dimensions the first has."""
_CONVOLUTIONS: dict[tuple[str, str], Callable[[Mapping[str, Any], Multiply], Any]] = {
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
        declared: Whether it is that of a unit that truncates.
        unit: How that computes it, once the types of operands are known (`way_for`).
    """

    block: int = 0
    exact: bool = False
    declared: bool = False
    unit: DeclaredProducts | None = None

    @property
    def multiply(self) -> Multiply:
        """What multiplies matrices of 16 bits."""
        return fused_products.product if self.unit is None else self.unit.computed


FREE = Way()
"""As the library pleases."""
_EXACT = Way(exact=True)
_DECLARED = Way(declared=True)


@per_op
def plan_of(op: Op) -> tuple[Callable[..., Tensor], str, str, int] | None:
    """Returns the product, its operands and the dimensions of the first, of an operation that is one."""
    return _PRESCRIBED.get(base_name(op))


@per_op
def convolution_of(op: Op) -> Callable[[Mapping[str, Any], Multiply], Any] | None:
    """Returns what computes an operation that is a convolution, of its operands by name and of what multiplies."""
    return _CONVOLUTIONS.get(base_name(op))


def way_for(op: Op, operands: Iterable[Any], policy: Policy, wide: torch.dtype) -> Way:
    """Returns what `way_of` does, for operands as they were before they were widened.

    Raises:
        RefusedOperationError: A unit is to multiply numbers of more than one type, as no PyTorch does; float32 among
            them has more bits than its products can have.
    """
    way = way_of(op, policy, wide)
    if not way.exact and not way.declared:
        return way
    types = {v.dtype for v in operands if isinstance(v, Tensor)}
    if len(types) > 1:
        raise RefusedOperationError(f"{op} on {', '.join(sorted(map(str, types)))}: use one type", operation=str(op))
    return Way(declared=True, unit=DeclaredProducts(policy.unit, types.pop(), policy.orders)) if way.declared else way


def way_of(op: Op, policy: Policy, wide: torch.dtype) -> Way:
    """Returns how a policy has an operation summed that is computed in a wide type.

    What is computed in float32 is not split: its bounds were measured on whole products. A unit multiplies nothing but
    16-bit types, and these are what is computed in float32.
    """
    if not policy.block and not policy.unit:
        return FREE
    if wide is torch.float64:
        return Way(block=policy.block) if plan_of(op) is not None else FREE
    if not policy.unit or (plan_of(op) is None and convolution_of(op) is None):
        return FREE
    return _DECLARED if policy.truncating else _EXACT


def evaluate(op: Op, args: Sequence[Any], kwargs: dict[str, Any], way: Way) -> Any:
    """Returns what an operation returns for wide operands, summed as it is prescribed."""
    if way == FREE:
        return op(*args, **kwargs)
    plan, convolution = plan_of(op), convolution_of(op)
    if convolution is not None:
        empty = any(isinstance(v, Tensor) and not v.numel() for v in args)
        return op(*args, **kwargs) if empty else convolution(bind(op, args, kwargs), way.multiply)
    if plan is None:
        return op(*args, **kwargs)
    product, first, second, dimensions = plan
    bound = bind(op, args, kwargs)
    a, b, added = bound[first], bound[second], None if first == "self" else bound["self"]
    unseen = added is not None and bound["alpha"] == 0
    total = _total(product, a, b, way, unseen=unseen) if fit(product, a, b, dimensions) else None
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


def fit(product: Callable[..., Tensor], a: Tensor, b: Tensor, dimensions: int) -> bool:
    """Says whether operands of a product fit together, the first of which has so many dimensions."""
    fits = a.dim() == dimensions and b.dim() == dimensions - (product is torch.mv)
    return fits and a.shape[:-2] == b.shape[: dimensions - 2] and b.shape[dimensions - 2] == a.shape[-1]


def _total(product: Callable[..., Tensor], a: Tensor, b: Tensor, way: Way, *, unseen: bool) -> Tensor | None:
    """Returns a product as it is prescribed, or None where the library's own is as good.

    One that is not seen, because it is multiplied by 0, is zeros: some kernels make NaN of what is infinite there.
    """
    as_unit = way.exact or way.unit is not None
    if unseen:
        return a.new_zeros((*a.shape[:-1], *b.shape[a.dim() - 1 :])) if as_unit else None
    if as_unit:
        return way.multiply(a, b[:, None])[:, 0] if product is torch.mv else way.multiply(a, b)
    terms = a.shape[-1]
    if terms <= way.block:
        return None
    return blocked_products.split(product, a, b, blocked_products.length(terms, way.block))
