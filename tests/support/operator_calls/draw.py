"""What calls are made of: sizes, choices and tensors of any small shape, drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor


class Draw:
    """Draws sizes, choices and tensors; real numbers are float64 unless an operation asks for another type."""

    dtype = torch.float64

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def size(self, low: int = 1, high: int = 5) -> int:
        return self._data.draw(st.integers(low, high))

    def of(self, *options: Any) -> Any:
        return self._data.draw(st.sampled_from(options))

    def flag(self) -> bool:
        return self._data.draw(st.booleans())

    def shape(self, low: int = 0, high: int = 3) -> tuple[int, ...]:
        return tuple(self._data.draw(st.lists(st.integers(1, 4), min_size=low, max_size=high)))

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._data.draw(st.integers(0, 10_000)))

    def real(self, *shape: int) -> Tensor:
        """Normal variates, sometimes laid out in another order of dimensions."""
        if len(shape) > 1 and self.flag():
            return torch.randn(shape[::-1], generator=self._generator(), dtype=self.dtype).permute(
                *range(len(shape))[::-1]
            )
        return torch.randn(shape, generator=self._generator(), dtype=self.dtype)

    def positive(self, *shape: int) -> Tensor:
        return self.real(*shape).abs() + 0.1

    def apart(self, *shape: int) -> Tensor:
        """Numbers that differ by a lot, in any order: where they are sorted or compared, rounding decides nothing."""
        count = int(torch.Size(shape).numel())
        order = torch.randperm(count, generator=self._generator())
        return ((order - count // 2).to(self.dtype) / 2 + 0.125).reshape(shape)

    def whole(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=self._generator())

    def distinct(self, high: int, count: int) -> Tensor:
        return torch.randperm(high, generator=self._generator())[:count]

    def matrix(self, n: int) -> Tensor:
        """Matrices that are safe to invert and need their rows exchanged."""
        batch = self.of((), (2,))
        return (torch.randn(*batch, n, n, generator=self._generator(), dtype=self.dtype) + 4 * torch.eye(n)).flip(-2)


@dataclass
class Call:
    """Operands."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


CALLS: dict[str, Callable[[Draw], Call]] = {}


def of(*keys: str) -> Callable[[Callable[..., Call]], Callable[..., Call]]:
    """Registers a function of a `Draw` (and of the key, if it takes two operands) for overloads."""

    def add(function: Callable[..., Call]) -> Callable[..., Call]:
        for key in keys:
            takes_key = function.__code__.co_argcount == 2
            CALLS[key] = (lambda draw, k=key: function(draw, k)) if takes_key else function
        return function

    return add


def call(*args: Any, **kwargs: Any) -> Call:
    return Call(args, kwargs)


def lists(draw: Draw, count: int, positive: tuple[int, ...] = ()) -> list[list[Tensor]]:
    """So many lists of tensors of the same shapes, those of some of them positive."""
    shapes = [draw.shape(1) for _ in range(draw.size(1, 3))]
    return [
        [draw.positive(*s).contiguous() if k in positive else draw.real(*s).contiguous() for s in shapes]
        for k in range(count)
    ]
