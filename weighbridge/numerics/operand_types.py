"""Types of operands: which a rule computes with, how they are widened, and which types results have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.rounding.formats import NARROW
from weighbridge.numerics.schemas import Op

Tensor = torch.Tensor
RULED = (torch.float32, *NARROW)
"""Formats that rules compute with."""
_PLANS: dict[Any, list[torch.dtype | None]] = {}


def is_float(value: Any) -> bool:
    """True for a tensor of floats."""
    return isinstance(value, Tensor) and value.is_floating_point()


def floats(value: Any) -> list[Tensor]:
    """Returns the tensors of floats that an operand is, or holds."""
    if isinstance(value, (list, tuple)):
        return [v for v in value if is_float(v)]
    return [value] if is_float(value) else []


def all_float32(values: Iterable[Any]) -> bool:
    """True if there are tensors among the operands of a call, all that are not integers are float32, and no type is."""
    found = False
    for v in values:
        for t in v if isinstance(v, (list, tuple)) else (v,):
            if isinstance(t, Tensor):
                dtype = t.dtype
                if dtype is torch.float32:
                    found = True
                elif dtype.is_floating_point or dtype.is_complex:
                    return False
            elif isinstance(t, torch.dtype):
                return False
    return found


def all_float64(bound: dict[str, Any]) -> bool:
    """True if there are tensors of floats among the operands of a call, and all are float64."""
    types = {t.dtype for v in bound.values() for t in floats(v)}
    return types == {torch.float64}


def refuse_types(op: Op, bound: dict[str, Any], policy: Policy) -> None:
    """Refuses operand types that a computing rule does not cover."""
    for value in bound.values():
        for t in floats(value):
            if t.dtype != torch.float32 and not (policy.narrow and t.dtype in NARROW):
                advice = (
                    "compute in float32, or make it before the Recorder begins; there is no wider type behind float64"
                    if t.dtype == torch.float64
                    else 'no strict bounds in 16 bits; the default, policy="mixed", takes calibrated ones there'
                )
                raise RefusedOperationError(f"{op} on {t.dtype}: {advice}", operation=str(op), dtype=str(t.dtype))
        if isinstance(value, Tensor) and value.is_complex():
            raise RefusedOperationError(f"{op} on {value.dtype}: complex arithmetic has no rule", operation=str(op))
        if value is torch.float64:
            raise RefusedOperationError(f"{op} with dtype float64: there is no wider type behind it", operation=str(op))


def widen(value: Any, wide: torch.dtype, integers: bool = False) -> Any:
    """Returns a copy of an operand in the wide type; integers as they are, unless they are wanted in it too."""
    if isinstance(value, Tensor):
        if value.dtype in RULED or (integers and not value.is_floating_point()):
            return value.to(wide, copy=True)
        return value
    if isinstance(value, (list, tuple)):
        return [widen(v, wide, integers) for v in value]
    return wide if isinstance(value, torch.dtype) and value in RULED else value


def result_types(op: Op, by_name: dict[str, Any]) -> list[torch.dtype | None] | None:
    """Types of the returned tensors where 16-bit operands take part, or None where all is float32."""
    if not any([_has_narrow(v) for v in by_name.values()]):
        return None
    key = (op, tuple(by_name), tuple([_trait(v) for v in by_name.values()]))
    if key not in _PLANS:
        try:
            out = op(**{k: _meta(v) for k, v in by_name.items()})
        except ZeroDivisionError:  # gradients of means of nothing
            out = op(**{k: _meta(v, least=1) for k, v in by_name.items()})
        returned = out if isinstance(out, (tuple, list)) else [out]
        _PLANS[key] = [t.dtype if isinstance(t, Tensor) and t.is_floating_point() else None for t in returned]
    return _PLANS[key]


def _trait(value: Any) -> Any:
    """What of an operand can decide the types of results: not the values of numbers, but which results are asked for.

    A convolution's `output_mask` is such a thing: a plan made where no gradient of the bias was wanted must not serve
    a call that wants one.
    """
    if isinstance(value, Tensor):
        return value.dtype, value.dim() == 0
    if isinstance(value, (list, tuple)):
        return tuple(_trait(v) for v in value)
    return value if value is None or isinstance(value, (bool, torch.dtype)) else type(value)


def _has_narrow(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dtype in NARROW
    if isinstance(value, (list, tuple)):
        return any([_has_narrow(v) for v in value])
    return isinstance(value, torch.dtype) and value in NARROW


def _meta(value: Any, least: int = 0) -> Any:
    """Operands without memory, each size at least `least`."""
    if isinstance(value, Tensor):
        sizes = [max(n, least) for n in value.shape]
        return torch.empty_strided(sizes, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return [_meta(v, least) for v in value]
    return torch.device("meta") if isinstance(value, torch.device) else value
