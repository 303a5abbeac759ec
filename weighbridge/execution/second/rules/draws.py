"""Random operations: Philox-4x32-10 in NumPy, and what is made of its words (docs/formats/transcript.md)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.execution.second.memory import F32, Array, NotCoveredError
from weighbridge.execution.second.table import Call, Kind, rule
from weighbridge.execution.second.types import cast
from weighbridge.numerics.random.philox import normal_table

Words = npt.NDArray[np.uint32]

_MULTIPLIERS, _WEYL, _LOW = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), np.uint64(0xFFFFFFFF)
_PIECE_BITS, _REST_BITS = 4, 27


def words(seed: int, stream: int, counter: int, count: int) -> Words:
    """Returns so many words of a draw: of its block b, the four that Philox makes of (b, stream, counter)."""
    block = np.arange(-(-count // 4), dtype=np.uint64)
    whole = [np.full(block.shape, value & 0xFFFFFFFF, np.uint64) for value in (counter, counter >> 32)]
    x = [block & _LOW, (block >> np.uint64(32)) | np.uint64((stream & 0xFFFF) << 16), *whole]
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        first, second = x[0] * np.uint64(_MULTIPLIERS[0]), x[2] * np.uint64(_MULTIPLIERS[1])
        x = [
            (second >> np.uint64(32)) ^ x[1] ^ np.uint64(key[0]), second & _LOW,
            (first >> np.uint64(32)) ^ x[3] ^ np.uint64(key[1]), first & _LOW,
        ]  # fmt: skip
        key = [(k + w) & 0xFFFFFFFF for k, w in zip(key, _WEYL, strict=True)]
    return np.stack(x, axis=1).reshape(-1)[:count].astype(np.uint32)


def uniform(w: Words) -> npt.NDArray[np.float32]:
    """Returns multiples of 2^-24 in [0, 1)."""
    return (w >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def normal(w: Words) -> npt.NDArray[np.float32]:
    """Returns normal variates: polynomials of the committed table, by Horner's scheme, one for each part of a tail."""
    tail = ((w & np.uint32(0x7FFFFFFF)) << np.uint32(1)) | np.uint32(1)
    octave = 32 - np.frexp(tail.astype(np.float64))[1]
    shifted = (tail.astype(np.uint64) << octave.astype(np.uint64)) & _LOW
    piece = (shifted >> np.uint64(_REST_BITS)) & np.uint64((1 << _PIECE_BITS) - 1)
    t = (shifted & np.uint64((1 << _REST_BITS) - 1)).astype(np.float64) / 2.0**_REST_BITS
    rows = normal_table()[(octave << _PIECE_BITS) + piece.astype(np.int64)]
    z = rows[:, -1]
    for d in range(rows.shape[1] - 2, -1, -1):
        z = z * t + rows[:, d]
    signed: Array = np.where(w >> np.uint32(31) == 0, -z, z)
    return signed.astype(np.float32)


def _shaped(call: Call) -> tuple[tuple[int, ...], Words]:
    shape = call["self"].shape if "self" in call.operands else call.shape()
    if call.kind() != F32:
        raise NotCoveredError(f"{call.name} of another type than float32")
    return shape, words(*call.accounting.draw(), math.prod(shape))


def _affine(values: Array, scale: Any, shift: Any) -> Array:
    return values * cast(scale, F32) + cast(shift, F32)


@rule("uniform.default", "self from=0.0 to=1.0 generator=None", Kind.RANDOM)
def _uniform(call: Call) -> Array:
    """Uniform between two numbers."""
    shape, drawn = _shaped(call)
    return _affine(uniform(drawn), call["to"] - call["from"], call["from"]).reshape(shape)


@rule("normal.default", "self mean=0.0 std=1.0 generator=None", Kind.RANDOM)
def _normal(call: Call) -> Array:
    """Normal with a mean and a standard deviation."""
    shape, drawn = _shaped(call)
    return _affine(normal(drawn), call["std"], call["mean"]).reshape(shape)


@rule("rand.default randn.default", "size", Kind.RANDOM)
@rule("rand_like.default randn_like.default", "self", Kind.RANDOM)
def _standard(call: Call) -> Array:
    """Uniform in [0, 1), or standard normal."""
    shape, drawn = _shaped(call)
    return (normal if call.name.startswith("randn") else uniform)(drawn).reshape(shape)


@rule("bernoulli.float", "self p=0.5 generator=None", Kind.RANDOM)
def _bernoulli(call: Call) -> Array:
    """1 with a probability, else 0."""
    shape, drawn = _shaped(call)
    return cast(uniform(drawn).astype(np.float64) < call["p"], F32).reshape(shape)
