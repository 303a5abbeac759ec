"""The host's memory: looking at a tensor's without a trace, and keeping what was freed for the next one.

`Tensor.numpy()` forbids its storage to be resized ever after, and FSDP2 resizes the storages of unsharded parameters.
So whoever hashes a program's memory reads it by its address.
"""

from __future__ import annotations

import ctypes
import weakref

import torch


def alive(reference: weakref.ref[torch.UntypedStorage]) -> torch.UntypedStorage | None:
    """Returns the storage of a weak reference, or None if it died.

    In PyTorch 2.6, the object of a freed storage stays while a cache of shared memory remembers it, and crashes whoever
    asks it for more than its address; and PyTorch must be told of a living one that came out of a weak reference, or
    the memory goes with its last tensor, whoever holds the object.
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
