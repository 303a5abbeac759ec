"""Reads boxes of tensors out of chunks of their storages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weighbridge.core.treehash.tree import CHUNK
from weighbridge.numerics.arrays.physical import dense_strides
from weighbridge.numerics.arrays.windows import Box
from weighbridge.transcript.tape import DTYPES, Ref

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Picked:
    """Rows of a tensor that are read instead of those of a box.

    Attributes:
        dim: The first dimension that counts them.
        span: How many dimensions count them together.
        rows: Their numbers.
    """

    dim: int
    span: int
    rows: Ints


def places(shape: tuple[int, ...], box: Box) -> Ints:
    """Returns the numbers of a box's elements in a row-major tensor, ascending."""
    steps = dense_strides(torch.Size(shape), None)
    return _sums([np.arange(*part, dtype=np.int64) * step for part, step in zip(box, steps, strict=True)], 0)


def tensor_of(ref: Ref, box: Box, chunks: Mapping[int, bytes], picked: Picked | None = None) -> Tensor:
    """Returns what a box of a tensor holds; of rows that are picked, their number is one dimension.

    Args:
        ref: The tensor.
        box: The box.
        chunks: Chunks of its storage by number; those of the box are among them.
        picked: The rows that are taken instead of those of the box.
    """
    dtype, known = DTYPES[ref[1]], sorted(chunks)
    data = b"".join(chunks[at].ljust(CHUNK, b"\x00") for at in known)
    axes = _axes(ref, box, picked)
    at = _sums(axes, ref[4]) * dtype.itemsize
    shape = [len(axis) for axis in axes]
    if not at.size:
        return torch.zeros(shape, dtype=dtype)
    place = np.searchsorted(np.array(known), at // CHUNK) * CHUNK + at % CHUNK
    return torch.frombuffer(bytearray(data), dtype=dtype)[torch.from_numpy(place // dtype.itemsize)].view(shape)


def chunks_read(ref: Ref, box: Box, picked: Picked | None = None) -> set[int]:
    """Returns the numbers of the chunks in which a box of a tensor lies; operands as of `tensor_of`."""
    at = _sums(_axes(ref, box, picked), ref[4]) * DTYPES[ref[1]].itemsize
    return set(np.unique(at // CHUNK).tolist())


def _axes(ref: Ref, box: Box, picked: Picked | None) -> list[Ints]:
    """Returns how far the indices of each dimension lie from its first one, in elements."""
    steps = [np.arange(*part, dtype=np.int64) * step for part, step in zip(box, ref[3], strict=True)]
    if picked is None:
        return steps
    dims = slice(picked.dim, picked.dim + picked.span)
    indices = np.unravel_index(picked.rows, ref[2][dims])
    rows = sum((at.astype(np.int64) * step for at, step in zip(indices, ref[3][dims], strict=True)), np.int64(0))
    return [*steps[: dims.start], np.asarray(rows, dtype=np.int64).reshape(-1), *steps[dims.stop :]]


def _sums(axes: list[Ints], offset: int) -> Ints:
    """Returns where elements lie, in elements, in row-major order of their indices."""
    found = np.full((1,), offset, dtype=np.int64)
    for axis in axes:
        found = (found[:, None] + axis).reshape(-1)
    return found
