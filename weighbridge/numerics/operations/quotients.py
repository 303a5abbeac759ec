"""Division and square root of float32 with their one right answer on every device.

IEEE 754 defines both as correctly rounded. Where a device's float32 kernel is not (a vector library's square root, a
division by a scalar as a multiplication by its reciprocal), float64 gives the right answer: rounding a quotient or root
of p-bit numbers to at least 2p + 2 bits and then to p bits is innocuous (Figueroa 1995, "When is double rounding
innocuous?"), and no root of a float32 is within two float64 units of the middle between two float32.
"""

from __future__ import annotations

from typing import Any

import torch

from weighbridge.numerics.arrays.physical import flat, is_dense
from weighbridge.numerics.overload_cache import per_op
from weighbridge.numerics.rounding import cpu_kernels
from weighbridge.numerics.rule_table import QUOTIENTS, base_name
from weighbridge.numerics.schemas import Op

Tensor = torch.Tensor


@per_op
def is_quotient(op: Op) -> bool:
    """True for the overloads that `evaluate` computes."""
    return base_name(op)[0] in QUOTIENTS


def evaluate(op: Op, bound: dict[str, Any], *, native: bool | None = None) -> Tensor:
    """Returns the correctly rounded float32 result of a division, reciprocal or square root, as a new tensor.

    Args:
        op: An overload for which `is_quotient` holds, in-place or not.
        bound: Operands by schema name: float32 and integer tensors, numbers.
        native: Whether float32 division of this device is IEEE's; by default it is known to be on the CPU.
    """
    name, x = base_name(op)[0], bound["self"]
    if native is None:
        native = not any(isinstance(v, Tensor) and v.device.type != "cpu" for v in bound.values())
    if name == "sqrt":
        return _root(x, native)
    top, bottom = (1.0, x) if name == "reciprocal" else (x, bound["other"])
    if native:
        result: Tensor = torch.ops.aten.div(top, bottom) if isinstance(top, Tensor) else torch.reciprocal(bottom)
        return result
    device = next(v.device for v in (x, bottom) if isinstance(v, Tensor))
    return torch.ops.aten.div.Tensor(wide(top, device), wide(bottom, device)).to(torch.float32)  # type: ignore[no-any-return]


def in_float64(x: Any, divisor: Any) -> Tensor:
    """Returns the quotient of float64 operands, of which at least one is a tensor, as a new tensor.

    A number is made a tensor on the device: by a number, a device may multiply with a reciprocal.
    """
    device = next(v.device for v in (x, divisor) if isinstance(v, Tensor) and (v.dim() or v.device.type != "cpu"))
    both = [torch.as_tensor(v, dtype=torch.float64).to(device, torch.float64) for v in (x, divisor)]
    return torch.ops.aten.div.Tensor(both[0], both[1])  # type: ignore[no-any-return]


def wide(value: Any, device: torch.device) -> Tensor:
    """Returns an operand as float32 arithmetic takes it, in float64, and on the device even if it is a number."""
    if isinstance(value, Tensor):
        return value.to(torch.float32).to(torch.float64)
    return torch.tensor(value, dtype=torch.float32).to(device, torch.float64)


def _root(x: Tensor, native: bool) -> Tensor:
    narrow = x.to(torch.float32)
    if not native or not is_dense(narrow):
        return narrow.to(torch.float64).sqrt().to(torch.float32)
    out = torch.empty_strided(narrow.shape, narrow.stride(), dtype=torch.float32)
    if narrow.numel():
        cpu_kernels.square_root(flat(narrow.detach()).numpy(), flat(out).numpy())
    return out
