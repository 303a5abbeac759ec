"""Storages as NumPy memory: what a reference names on one, and in which order its elements lie there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.transcript.tape import Ref

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

KINDS: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in (
        ("f64", "<f8"), ("f32", "<f4"), ("i64", "<i8"), ("i32", "<i4"), ("i16", "<i2"), ("i8", "i1"), ("u8", "u1"),
        ("bool", "?"),
    )
}  # fmt: skip
"""Types of elements by their name on a tape; those of 16-bit floats are not among them."""
F32, F64 = KINDS["f32"], KINDS["f64"]


class NotCoveredError(Exception):
    """There is no rule here for an operation or its operands: nothing is said about the transcript from there on."""


def kind_of(name: str) -> np.dtype[Any]:
    """Returns the type of elements of a name on a tape.

    Raises:
        NotCoveredError: It is one of 16 bits.
    """
    if name not in KINDS:
        raise NotCoveredError(f"elements of type {name}")
    return KINDS[name]


def view(data: Bytes, ref: Ref) -> Array:
    """Returns the array that a reference names on a storage.

    Raises:
        ValueError: It reaches past the end of the storage.
    """
    _, name, size, stride, offset = ref
    kind = kind_of(name)
    if 0 in size:
        return np.empty(size, kind)
    return np.ndarray(size, kind, data, offset * kind.itemsize, [step * kind.itemsize for step in stride])


def is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Says whether strides cover memory once, without gaps or overlap, in some order of the dimensions."""
    reached = 1
    for step, length in sorted((st, n) for st, n in zip(stride, size, strict=True) if n != 1):
        if step != reached:
            return False
        reached *= length
    return True


def memory_order(size: Sequence[int], stride: Sequence[int]) -> list[int]:
    """Returns the dimensions from the outermost in memory to the innermost; row-major for what is not dense."""
    dimensions = list(range(len(size)))
    return sorted(dimensions, key=lambda d: (-stride[d], d)) if is_dense(size, stride) else dimensions
