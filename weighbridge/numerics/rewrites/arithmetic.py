"""Scaled sums, powers, rounding and comparisons, in steps with one right answer."""

from __future__ import annotations

from typing import Any

import torch

from weighbridge.numerics.rewrites.rewrite_table import Decomposition, decomposes

aten = torch.ops.aten
Tensor = torch.Tensor


# Scaled additions are multiplications and additions, each with one right answer: no wide arithmetic and no log.
# Multiples such as 0.1*x lie on or within a rounding error of the midpoint between two results a few times in a
# hundred, so their log would be the largest of all. In float32 they are rules (`chains`).


def _float32(*operands: Any, **named: Any) -> bool:
    return all([v.dtype is torch.float32 for v in (*operands, *named.values()) if isinstance(v, Tensor)])


def _scaled(other: Any, alpha: Any) -> Any:
    return other if alpha == 1 else other * alpha


@decomposes("lerp.Scalar", "lerp.Tensor", unless=_float32)
def _lerp(a: Tensor, end: Tensor, weight: Any) -> Any:
    return a + (end - a) * weight


@decomposes("lerp_.Scalar", "lerp_.Tensor", unless=_float32)
def _lerp_(a: Tensor, end: Tensor, weight: Any) -> Any:
    return a.add_((end - a) * weight)


@decomposes("addcmul.default", unless=_float32)
def _addcmul(x: Tensor, first: Tensor, second: Tensor, *, value: Any = 1) -> Any:
    return x + _scaled(first * second, value)


@decomposes("addcmul_.default", unless=_float32)
def _addcmul_(x: Tensor, first: Tensor, second: Tensor, *, value: Any = 1) -> Any:
    return x.add_(_scaled(first * second, value))


@decomposes("addcdiv.default", unless=_float32)
def _addcdiv(x: Tensor, first: Tensor, second: Tensor, *, value: Any = 1) -> Any:
    return x + _scaled(first / second, value)


@decomposes("addcdiv_.default", unless=_float32)
def _addcdiv_(x: Tensor, first: Tensor, second: Tensor, *, value: Any = 1) -> Any:
    return x.add_(_scaled(first / second, value))


@decomposes("pow.Tensor_Scalar", unless=lambda x, exponent: exponent not in (2, 3))
def _power(x: Tensor, exponent: Any) -> Any:
    return x * x if exponent == 2 else x * x * x


def _with_alpha(name: str) -> Decomposition:
    packet = getattr(aten, name)

    def run(x: Any, other: Any, alpha: Any = 1) -> Any:
        return packet(x, other * alpha)

    return run


def _ruled_sum(x: Any, other: Any, alpha: Any = 1) -> bool:
    return alpha == 1 or (isinstance(other, Tensor) and _float32(x, other))


for _name in ("add", "add_", "sub", "sub_"):
    decomposes(f"{_name}.Tensor", f"{_name}.Scalar", unless=_ruled_sum)(_with_alpha(_name))


@decomposes("rsub.Tensor", "rsub.Scalar", unless=lambda x, other, alpha=1: alpha == 1)
def _reverse_subtraction(x: Tensor, other: Any, alpha: Any = 1) -> Any:
    return aten.rsub(x * alpha, other)


@decomposes("round.decimals")
def _round_to_decimals(x: Tensor, *, decimals: int = 0) -> Tensor:
    """Both scalings are what PyTorch's kernels do; between them lies one rounding with one right answer."""
    scale = 10.0 ** abs(decimals)
    if decimals == 0:
        return torch.round(x)
    return torch.round(x * scale) / scale if decimals > 0 else torch.round(x / scale) * scale


@decomposes("_foreach_powsum.Scalar")
def _foreach_sum_of_powers(x: list[Tensor], ord: Any = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    return [(t if dtype is None else t.to(dtype)).abs().pow(ord).sum() for t in x]


@decomposes("logspace.default")
def _logspace(start: Any, end: Any, steps: int, base: float = 10.0, **options: Any) -> Any:
    return aten.pow.Scalar(base, torch.linspace(start, end, steps, **options))


@decomposes("allclose.default")
def _allclose(x: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    return bool(torch.isclose(x, other, rtol, atol, equal_nan).all().item())
