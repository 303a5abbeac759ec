"""The host's memory: looking at a tensor's without a trace, and keeping what was freed for the next one.

`Tensor.numpy()` forbids its storage to be resized ever after, and FSDP2 resizes the storages of unsharded parameters.
So code that hashes a program's memory reads it by its address.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def alive(reference: weakref.ref[torch.UntypedStorage]) -> torch.UntypedStorage | None:
    """Returns the storage of a weak reference, or None if it died.

    In PyTorch 2.6, the object of a freed storage stays while a cache of shared memory remembers it, and asking it for
    more than its address crashes the process. PyTorch must be told of a living one that came out of a weak reference,
    or the memory goes with its last tensor, even while the object is held.
    """
    storage = reference()
    if storage is None or not torch._C._storage_Use_Count(storage._cdata):
        return None
    storage._fix_weakref()  # type: ignore[attr-defined]
    return storage


def octets(flat: torch.Tensor) -> memoryview:
    """Returns the bytes of a contiguous tensor, in host memory (a copy only if it lies elsewhere); keeps it alive.

    Args:
        flat: A contiguous tensor of any dtype and device.
    """
    flat = flat.detach().cpu()
    if not flat.numel():
        return memoryview(b"")  # an address of nothing is not taken for a buffer everywhere
    buffer = (ctypes.c_ubyte * (flat.numel() * flat.itemsize)).from_address(flat.data_ptr())
    buffer.tensor = flat  # type: ignore[attr-defined]
    return memoryview(buffer).cast("B")


class _Seen:
    """What NumPy asks to see memory by its address; keeps it alive."""

    __slots__ = ("__array_interface__", "owner")
    __array_interface__: dict[str, Any]
    owner: torch.Tensor | torch.UntypedStorage


_CODES = {
    torch.float32: "<f4", torch.float64: "<f8", torch.float16: "<f2", torch.int64: "<i8", torch.int32: "<i4",
    torch.int16: "<i2", torch.int8: "|i1", torch.uint8: "|u1", torch.bool: "|b1",
}  # fmt: skip


def array_of(t: torch.Tensor, count: int | None = None) -> npt.NDArray[Any]:
    """Returns the memory of a CPU tensor as a one-dimensional array that keeps it alive.

    Args:
        t: A tensor of a type that NumPy has. Its strides do not matter.
        count: How many elements from its first on; by default as many as it has.
    """
    return _seen(t, _CODES[t.dtype], t.numel() if count is None else count)


def bytes_of(storage: torch.UntypedStorage) -> npt.NDArray[np.uint8]:
    """Returns the bytes of a storage on the CPU as an array that keeps it alive."""
    return _seen(storage, "|u1", storage.nbytes())


def _seen(owner: torch.Tensor | torch.UntypedStorage, code: str, count: int) -> npt.NDArray[Any]:
    if not count:
        return np.empty(0, dtype=code)  # an address of nothing is not taken for a buffer everywhere
    seen = _Seen()
    seen.owner = owner
    seen.__array_interface__ = {"version": 3, "typestr": code, "shape": (count,), "data": (owner.data_ptr(), False)}
    return np.asarray(seen)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_LARGEST_INT = (1 << 31) - 1


def keep_freed() -> bool:
    """Asks the C library to keep the memory that this process frees; returns whether it will.

    Else it hands every large block back at once, and the system clears it again for the next operation's result: in
    training, gigabytes in every step. The process stays as large as it once was.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False  # another C library than glibc
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_INT)) and bool(mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT))
