"""What the firmware counts: the kernels of all threads, their time and bytes, and their FLOPs as tapes count them.

A mode at the dispatcher meets an operation before PyTorch takes it apart if no gradient is asked for
(`torch.inference_mode`), and never what an operator outside ATen calls. So such operations are opened: they run with
the mode in force, which meets the kernels inside.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from firmware_sim.work_page import MOST, SLOT, Slots
from weighbridge.attest.work import NAMES, NONE, Work
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
    """What one thread has counted in its slot, and before in slots that are full."""

    __slots__ = ("busy", "flops", "kernels", "moved", "slot", "unknown")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.kernels = self.busy = self.moved = self.flops = self.unknown = 0

    def values(self) -> tuple[int, int, int, int, int]:
        """The counters in the order of a slot."""
        return self.kernels, self.busy, self.moved, self.flops, self.unknown


class _Lease:
    """A thread's hold of a tally: another thread goes on with it once this one has ended."""

    __slots__ = ("_free", "tally")

    def __init__(self, tally: _Tally, free: list[_Tally]) -> None:
        self.tally, self._free = tally, free

    def __del__(self) -> None:
        self._free.append(self.tally)


class WorkCounter:
    """Counts kernels and what they do into a page; each thread has a slot of its own, so none waits for another."""

    def __init__(self, slots: Slots | None = None) -> None:
        """Starts at zero.

        Args:
            slots: The page that the chip reads; by default no other process sees what is counted.
        """
        self._slots = Slots() if slots is None else slots
        self._memory = self._slots.memory
        self._begin()

    def _begin(self) -> None:
        self._here = threading.local()
        self._tallies: list[_Tally] = []
        self._free: list[_Tally] = []
        self._spent = NONE

    def forked(self) -> None:
        """Goes on in a forked process, which is another user of the same chip."""
        self._slots.forked()
        self._begin()

    def _tally(self) -> _Tally:
        try:
            return self._here.lease.tally  # type: ignore[no-any-return]
        except AttributeError:
            try:
                tally = self._free.pop()
            except IndexError:
                tally = _Tally(self._slots.take())
                self._tallies.append(tally)
            self._here.lease = _Lease(tally, self._free)
            return tally

    @property
    def total(self) -> Work:
        """What this process has counted."""
        total = self._spent
        for tally in list(self._tallies):
            total += Work(**dict(zip(NAMES, tally.values(), strict=True)))
        return total

    @property
    def so_far(self) -> tuple[int, int]:
        """FLOPs and nanoseconds of this thread so far."""
        tally = self._tally()
        return tally.flops, tally.busy

    def add(
        self,
        op: Op,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        out: Any,
        busy_ns: int,
        moved: int,
        since: tuple[int, int] | None = None,
    ) -> None:
        """Counts one kernel.

        Args:
            op: Its overload.
            args: Positional operands.
            kwargs: Keyword operands.
            out: What it returned.
            busy_ns: Nanoseconds that it took.
            moved: Bytes of its operands and results.
            since: For a foreign operator: `so_far` before it ran. What it called is counted already; without a count
                of its own that is all, unless it called nothing. The rest of its time is that of unknown work,
                whatever count the workload declared for it.
        """
        unknown = 0
        try:
            done = counts.count(op, args, kwargs, out)
        except _UNFIT:  # layouts that have no sizes
            done, unknown = formulas.bound({"args": list(args), **kwargs}, [out]), busy_ns
        try:
            tally = self._here.lease.tally
        except AttributeError:
            tally = self._tally()
        if since is not None:
            inside = max(0, tally.flops - since[0])
            done = 0 if inside and not counts.declared(op) else max(0, done - inside)
            busy_ns = unknown = _rest(busy_ns, tally, since)
        tally.kernels += 1
        tally.busy += busy_ns
        tally.moved += moved
        tally.flops += done
        tally.unknown += unknown
        try:
            _write(self._memory, tally.slot, tally.kernels, tally.busy, tally.moved, tally.flops, tally.unknown)
        except struct.error:
            self._turn(tally)

    def failed(self, *, busy_ns: int, since: tuple[int, int]) -> None:
        """Counts a kernel that raised an error; whatever it did before is unknown work.

        Args:
            busy_ns: As for `add`.
            since: `so_far` before it ran.
        """
        tally = self._tally()
        tally.kernels += 1
        self._spend(tally, _rest(busy_ns, tally, since), known=False)

    def wait(self, busy_ns: int) -> None:
        """Counts time in which kernels that were counted when they were launched went on."""
        self._spend(self._tally(), busy_ns, known=True)

    def _spend(self, tally: _Tally, busy_ns: int, *, known: bool) -> None:
        tally.busy += busy_ns
        tally.unknown += 0 if known else busy_ns
        try:
            _write(self._memory, tally.slot, *tally.values())
        except struct.error:
            self._turn(tally)

    def _turn(self, tally: _Tally) -> None:
        """Has a thread go on in other slots, once a counter no longer fits into the one that it has."""
        left = list(tally.values())
        while any(left):
            part = [min(each, MOST) for each in left]
            left = [each - here for each, here in zip(left, part, strict=True)]
            _write(self._memory, tally.slot, *part)
            self._spent += Work(**dict(zip(NAMES, part, strict=True)))
            tally.slot = self._slots.take()
        tally.kernels = tally.busy = tally.moved = tally.flops = tally.unknown = 0


_write = SLOT.pack_into


def _rest(busy_ns: int, tally: _Tally, since: tuple[int, int]) -> int:
    """The time of a kernel less that of the kernels inside, which is counted already."""
    return max(0, busy_ns - max(0, tally.busy - since[1]))
