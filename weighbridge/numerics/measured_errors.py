"""How large the errors of a device's own float32 kernels are, in units of their bounds: what calibrated bounds rest on.

While a training is recorded, each rounded operation is computed twice from the same operands: in float64, as ever, and
in float32 by the device's kernel. The ratio is |float32 - float64| / bound, the bound in the form that calibrated ones
are multiples of (`bounds.without_growth`). A table of factors has the largest ratio of each operation, times a safety
factor (`weighbridge.numerics.conformance.bound_policy`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from weighbridge.numerics.arrays.physical import dense_strides, flat, lay_out
from weighbridge.numerics.bounds import Call, without_growth
from weighbridge.numerics.operations import rounded
from weighbridge.numerics.rounding.bound import dense_bound

SAFETY = 4.0
"""A factor over the largest ratio that was observed."""
_TO_FLOAT32 = 2.0**29
"""Unit roundoff of float32 over that of float64."""
_LEAST = 2.0**-100
"""Results below it are left out: what is subnormal has other errors."""


@dataclass(slots=True)
class MeasuredErrors:
    """What was measured, by operator name without namespace and overload.

    Attributes:
        ratios: The largest ratio of error to bound.
        samples: How many elements were compared.
    """

    ratios: dict[str, float] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)

    def include(self, name: str, ratio: float, samples: int) -> None:
        """Takes in what one call of an operation showed."""
        self.ratios[name] = max(self.ratios.get(name, 0.0), ratio)
        self.samples[name] = self.samples.get(name, 0) + samples


@contextmanager
def measuring() -> Iterator[MeasuredErrors]:
    """Within it, every operation that is rounded and bounded is measured; for processes that do nothing else."""
    found, original = MeasuredErrors(), rounded._limits

    def limits(rule: Any, call: Call, policy: Any, wide: torch.dtype) -> Any:
        _compare(rule, call, found)
        return original(rule, call, policy, wide)

    rounded._limits = limits
    try:
        yield found
    finally:
        rounded._limits = original


def _compare(rule: Any, call: Call, found: MeasuredErrors) -> None:
    """Computes a call in float32 too."""
    args = {k: v for k, v in call.args.items() if not k.startswith("__")}
    op = getattr(getattr(torch.ops.aten, call.name), call.args["__overload__"])
    assert rule.bound is not None
    with without_growth():
        bounds = rule.bound(call)
    out = op(**{k: _narrow(v) for k, v in args.items()})
    returned = [t for t in (out if isinstance(out, (tuple, list)) else [out]) if _is_float(t)]
    for x64, x32, bound in zip(call.results, returned, bounds, strict=False):
        if not x64.numel():
            continue
        exact = lay_out(x64, dense_strides(x64.shape, x64.stride()))
        e = dense_bound(exact, bound) * _TO_FLOAT32
        error = (flat(exact) - lay_out(x32.double(), exact.stride()).as_strided((exact.numel(),), (1,))).abs()
        usable = (e > 0) & torch.isfinite(error) & (flat(exact).abs() > _LEAST)
        if bool(usable.any()):
            found.include(call.name, float((error[usable] / e[usable]).max()), int(usable.sum()))


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _narrow(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
        return value.float()
    return torch.float32 if value is torch.float64 else value
