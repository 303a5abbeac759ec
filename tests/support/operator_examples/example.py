"""What examples are made of: operands of several styles, calls, and the same calculated in long doubles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import mpmath
import numpy as np
import torch

aten = torch.ops.aten
Tensor = torch.Tensor
Op = torch._ops.OpOverload

STYLES = ("plain", "offset", "mixed")


class Maker:
    """Makes float32 operands: `plain` are normal, `offset` far from zero, `mixed` of very different size."""

    def __init__(self, style: str, seed: int = 0) -> None:
        self.style = style
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        x = torch.randn(shape, generator=self.generator)
        if self.style == "offset":
            return x + 30
        return x * torch.exp(3 * torch.randn(shape, generator=self.generator)) if self.style == "mixed" else x

    def positive(self, *shape: int) -> Tensor:
        return self(*shape).abs() + 1e-3

    def fraction(self, *shape: int) -> Tensor:
        """Values in (0, 1)."""
        return torch.rand(shape, generator=self.generator) * 0.998 + 0.001

    def index(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=self.generator)


@dataclass(slots=True)
class Example:
    """One call."""

    op: Op
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


Calls = Iterator[Example]
EXAMPLES: dict[str, Callable[[Maker], Calls]] = {}


def _with(function: Callable[[Maker, Op], Calls], op: Op) -> Callable[[Maker], Calls]:
    return lambda make: function(make, op)


def of(*keys: str) -> Callable[[Callable[[Maker, Op], Calls]], None]:
    """Registers a function that yields examples of overloads, given (maker, overload)."""

    def add(function: Callable[[Maker, Op], Calls]) -> None:
        for key in keys:
            name, overload = key.partition("/")[0].split(".")
            EXAMPLES[key] = _with(function, getattr(getattr(aten, name), overload))

    return add


LongDoubles = Any  # NumPy arrays of long doubles; their type differs by platform

WIDE_ENOUGH = np.finfo(np.longdouble).nmant >= 63

REFERENCES: dict[str, Callable[..., list[LongDoubles]]] = {}
"""Functions of an overload's operands that return its results in long doubles, where there is a formula."""


def long(t: Tensor | None) -> Any:
    """A tensor's values as long doubles."""
    return None if t is None else t.detach().double().numpy().astype(np.longdouble)


def with_digits(function: Callable[[Any], Any], x: LongDoubles) -> LongDoubles:
    """A function of floats, computed with 40 digits."""
    with mpmath.workdps(40):
        exact = [function(mpmath.mpf(float(v))) for v in x.reshape(-1)]
        parts = [(float(v), float(v - mpmath.mpf(float(v)))) for v in exact]
    high, low = np.array(parts, dtype=np.longdouble).T
    return (high + low).reshape(x.shape)
