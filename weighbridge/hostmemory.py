"""Looking at a tensor's memory without a trace.

`Tensor.numpy()` forbids its storage to be resized ever after, and FSDP2 resizes the storages of unsharded parameters.
So whoever hashes a program's memory reads it by its address.
"""

from __future__ import annotations

import ctypes

import torch


def octets(flat: torch.Tensor) -> memoryview:
    """Returns the bytes of a contiguous tensor, in host memory (a copy only if it lies elsewhere); keeps it alive.

    Args:
        flat: A contiguous tensor of any dtype and device.
    """
    flat = flat.detach().cpu()
    buffer = (ctypes.c_ubyte * (flat.numel() * flat.itemsize)).from_address(flat.data_ptr())
    buffer.tensor = flat  # type: ignore[attr-defined]
    return memoryview(buffer).cast("B")
