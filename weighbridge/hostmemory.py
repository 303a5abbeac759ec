"""Looking at a tensor's memory without a trace.

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
