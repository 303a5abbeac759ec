"""Marks of memory: whether it changed is told by a checksum, which takes a quarter of a digest's time or less.

A mark is XXH3 of 128 bits. A change by accident leaves it as it was once in 2^128 times. Who wants to can make other
content with the same mark, so nothing that a transcript says may rest on one.
"""

from __future__ import annotations

import torch
import xxhash

from prover.capture.without_modes import storage_bytes


def mark(data: memoryview) -> bytes:
    """Returns the mark of some bytes (16 bytes)."""
    return xxhash.xxh3_128_digest(data)


def storage_mark(storage: torch.UntypedStorage) -> bytes:
    """Returns the mark of what a storage on any device holds (16 bytes)."""
    return mark(storage_bytes(storage).data)
