"""Divisions of floats that are followed by a jump, and their remainders: `//`, `%`, `fmod`, `div(rounding_mode=...)`.

A quotient within a rounding error of a whole number may lie on either side of it, so no bound would do. They have one
right answer instead: the quotient is taken in float64, whose division is IEEE's on every device, and the rest are
operations that round nothing. Below 2^29 the quotient of two float32 is never rounded up to a whole number that it does
not reach, since it is away from it by at least 2^-24, or by 2^-48 of its size; and there the product of a divisor and
a whole quotient is exact, and so is the remainder. Where PyTorch's own kernels differ, float32 had led them astray.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.operations.quotients import wide
from weighbridge.numerics.overload_cache import per_op
from weighbridge.numerics.rule_table import MODULI, base_name
from weighbridge.numerics.schemas import Op

Tensor = torch.Tensor
_LARGEST = float(1 << 29)


@per_op
def is_modulus(op: Op) -> bool:
    """True for the overloads that `evaluate` computes."""
    name, overload = base_name(op)
    return f"{name}.{overload}" in MODULI


def covers(bound: dict[str, Any]) -> bool:
    """True for a call on floats; integers have one right answer as they are."""
    return torch.result_type(bound["self"], bound["other"]).is_floating_point or (
        bound.get("rounding_mode", "") is None  # true division
    )


def evaluate(op: Op, bound: dict[str, Any]) -> Tensor:
    """Returns the float32 result as a new tensor.

    Args:
        op: An overload for which `is_modulus` holds, in-place or not.
        bound: Operands by schema name, for which `covers` holds: float32 and integer tensors, numbers.

    Raises:
        RefusedOperationError: A remainder is asked for where the quotient is 2^29 or larger.
    """
    name = base_name(op)[0]
    device = next(v.device for v in (bound["self"], bound["other"]) if isinstance(v, Tensor))
    x, divisor = (wide(bound[operand], device) for operand in ("self", "other"))
    quotient = torch.ops.aten.div.Tensor(x, divisor)
    mode = bound["rounding_mode"] if name == "div" else "floor" if name == "floor_divide" else None
    if mode == "floor":
        return quotient.floor().to(torch.float32)  # type: ignore[no-any-return]
    if name == "div":
        narrow = quotient.to(torch.float32)  # rounded twice, which for a quotient is as good as once (`quotients`)
        return narrow.trunc() if mode == "trunc" else narrow  # type: ignore[no-any-return]
    whole = quotient.trunc()
    size = whole.abs()
    if bool(((size >= _LARGEST) & (size < math.inf)).any()):
        raise RefusedOperationError(
            f"{op}: a quotient is 2^29 or larger, where its remainder has no digit left; use integers",
            operation=str(op),
        )
    rest = torch.where(divisor.isinf() & x.isfinite(), x, x - whole * divisor)
    rest = torch.where(rest == 0, torch.copysign(rest, x), rest).to(torch.float32)
    if name == "fmod":
        return rest
    other = divisor.to(torch.float32)
    return torch.where((rest != 0) & ((rest < 0) != (other < 0)), rest + other, rest)
