"""What the firmware counts: the kernels of all threads, and their FLOPs as tapes count them.

A mode at the dispatcher meets an operation before PyTorch takes it apart if no gradient is asked for
(`torch.inference_mode`), and never what an operator outside ATen calls. So such operations are opened: they run with
the mode in force, which meets the kernels inside.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from weighbridge.numerics.flops import counts, formulas
from weighbridge.numerics.overload_cache import per_op
from weighbridge.numerics.schemas import Op, composite

_OURS = frozenset({"aten", "prim", "profiler", "c10d", "_c10d_functional", "_c10d_functional_autograd", "weighbridge"})
_UNFIT = (AttributeError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)


class Kernel(Enum):
    """What stands behind an overload."""

    OWN = "a kernel of PyTorch's"
    COMPOSITE = "other overloads"
    FOREIGN = "code of a library's, which may call others"


@per_op
def kernel_of(op: Op) -> Kernel:
    """Says what stands behind an overload."""
    if composite(op) and not any(torch._C._dispatch_has_kernel_for_dispatch_key(op._name, k) for k in ("CPU", "CUDA")):
        return Kernel.COMPOSITE
    return Kernel.OWN if op.namespace in _OURS else Kernel.FOREIGN


@contextlib.contextmanager
def in_force(mode: TorchDispatchMode) -> Iterator[None]:
    """Has this thread's operations go through a mode, once more if one of them is being handled by it."""
    _push_mode(mode)
    try:
        yield
    finally:
        _pop_mode()


def opened(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Calls the kernel of a foreign operator in the modes that are in force; as it is, they would meet it again."""
    on_gpu = any(isinstance(each, torch.Tensor) and each.is_cuda for each in (*args, *kwargs.values()))
    key = torch._C.DispatchKey.CUDA if on_gpu else torch._C.DispatchKey.CPU
    return op.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)


class _Tally:
    __slots__ = ("flops", "kernels")

    def __init__(self) -> None:
        self.kernels, self.flops = 0, 0


class WorkCounter:
    """Counts kernels and FLOPs; each thread has a tally of its own, so none is lost and no thread waits."""

    def __init__(self) -> None:
        """Starts at zero."""
        self._here = threading.local()
        self._tallies: list[_Tally] = []

    def _tally(self) -> _Tally:
        try:
            return self._here.tally  # type: ignore[no-any-return]
        except AttributeError:
            tally = self._here.tally = _Tally()
            self._tallies.append(tally)
            return tally

    @property
    def kernels(self) -> int:
        """Kernels so far."""
        return sum(tally.kernels for tally in list(self._tallies))

    @property
    def flops(self) -> int:
        """FLOPs so far."""
        return sum(tally.flops for tally in list(self._tallies))

    @property
    def so_far(self) -> int:
        """FLOPs of this thread so far."""
        return self._tally().flops

    def add(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any], out: Any, *, since: int | None = None) -> None:
        """Counts one kernel.

        Args:
            op: Its overload.
            args: Positional operands.
            kwargs: Keyword operands.
            out: What it returned.
            since: For a foreign operator: `so_far` before it ran. What it called is counted already; without a count
                of its own that is all, unless it called nothing.
        """
        try:
            done = counts.count(op, args, kwargs, out)
        except _UNFIT:  # layouts that have no sizes
            done = formulas.bound({"args": list(args), **kwargs}, [out])
        tally = self._tally()
        tally.kernels += 1
        if since is not None:
            inside = tally.flops - since
            done = 0 if inside and not counts.declared(op) else max(0, done - inside)
        tally.flops += done
