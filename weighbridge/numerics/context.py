"""What the operations of a step are evaluated in: the Recorder writes the rounding log there, the executor reads it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from weighbridge.numerics.conformance.bound_policy import STRICT, Policy
from weighbridge.numerics.random import variates
from weighbridge.numerics.rounding.bound import Bound

Strides = tuple[int, ...] | None
Layout = Callable[[int], Strides]
Tensor = torch.Tensor


class Context(ABC):
    """What one step's operations are evaluated in."""

    policy: Policy = STRICT
    bounded: bool = True
    """Whether `rounded` uses the bounds that it is given; else they need not be computed."""
    bounds_halves: bool = True
    """Whether it does so for results of 16 bits too."""

    @abstractmethod
    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """Rounds a dense wide result to `dtype`, logging or following contested roundings."""

    @abstractmethod
    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """Canonicalises NaN in a flat float32, bfloat16 or float16 result in place and accounts for its checksum.

        Args:
            bits: The result.
            checksum: Its checksum, if the caller has canonicalised it.
        """

    @abstractmethod
    def draw(self, generator: torch.Generator | None, device: torch.device) -> variates.Draw:
        """Returns the key of the next random draw and advances the counter."""

    @abstractmethod
    def host(self, value: bool | int | float) -> bool | int | float:
        """Records or checks a value that Python gets to see."""


def row_major(_: int) -> Strides:
    """The layout callback of a caller that has no wish: the kernel's own layout is kept."""
    return None
