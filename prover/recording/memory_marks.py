"""Marks of memory: whether it changed is told by a checksum, which takes a quarter of a digest's time or less.

A mark is XXH3 of 128 bits under a seed that this process draws and keeps to itself: who chooses content (a data set's
author, say) could otherwise choose two with one mark, and the digest of the first would stand for the second. Marks
are for this process alone and are never written.
"""

from __future__ import annotations

import secrets

import torch
import xxhash

from prover.capture.without_modes import storage_bytes

_SEED = secrets.randbits(64)


def mark(data: memoryview) -> bytes:
    """Returns the mark of some bytes (16 bytes)."""
    return xxhash.xxh3_128_digest(data, _SEED)


def storage_mark(storage: torch.UntypedStorage) -> bytes:
    """Returns the mark of what a storage on any device holds (16 bytes)."""
    return mark(storage_bytes(storage).data)
