"""Counts what runs here, as a chip does, without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from weighbridge.numerics.flops import counts


class Counting(TorchDispatchMode):
    """Counts the FLOPs of what runs in it.

    Attributes:
        total: FLOPs so far.
    """

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.total += counts.count(func, args, kwargs or {}, out)
        return out


def counted(call: Callable[[], Any]) -> int:
    """Returns the FLOPs of what `call` does."""
    with Counting() as mode:  # type: ignore[no-untyped-call]
        call()
    return mode.total
