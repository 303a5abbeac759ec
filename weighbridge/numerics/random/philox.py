"""Counter-based randomness: Philox-4x32-10 (Salmon et al., SC 2011), the same bits on every device.

The key is (seed, stream, counter, element): `seed` belongs to the run, `stream` is the data-parallel rank, `counter`
numbers the draws and lives in the torch generator (as its seed), `element` is the row-major index in the unsharded
tensor. Variates use only operations with one right answer: integer work, IEEE additions and multiplications in a fixed
order, and comparisons.

Here words are made on the CPU, by compiled code; `device_philox` makes the same ones on other devices.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.core.jit import compiled

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85

Words = npt.NDArray[np.uint32]
_jit = compiled(error_model="numpy")


@_jit
def _fill(
    k0: np.uint32, k1: np.uint32, c1_high: np.uint32, c2: np.uint32, c3: np.uint32, out: npt.NDArray[Any]
) -> None:
    """Fills `out` (a multiple of 4 words): block b uses the counter (b low, b high | c1_high, c2, c3)."""
    mask = np.uint64(0xFFFFFFFF)
    for block in range(out.size // 4):
        x0 = np.uint64(block) & mask
        x1 = (np.uint64(block) >> np.uint64(32)) | np.uint64(c1_high)
        x2 = np.uint64(c2)
        x3 = np.uint64(c3)
        a = np.uint64(k0)
        b = np.uint64(k1)
        for _ in range(10):
            p0 = np.uint64(M0) * x0
            p1 = np.uint64(M1) * x2
            x0, x1, x2, x3 = (p1 >> np.uint64(32)) ^ x1 ^ a, p1 & mask, (p0 >> np.uint64(32)) ^ x3 ^ b, p0 & mask
            a = (a + np.uint64(W0)) & mask
            b = (b + np.uint64(W1)) & mask
        out[4 * block] = np.uint32(x0)
        out[4 * block + 1] = np.uint32(x1)
        out[4 * block + 2] = np.uint32(x2)
        out[4 * block + 3] = np.uint32(x3)


def block(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Philox-4x32-10 on one counter block, in plain integers: the reference for the published test vectors."""
    x0, x1, x2, x3 = counter
    a, b = key
    for _ in range(10):
        p0, p1 = M0 * x0, M1 * x2
        x0, x1, x2, x3 = (p1 >> 32) ^ x1 ^ a, p1 & 0xFFFFFFFF, (p0 >> 32) ^ x3 ^ b, p0 & 0xFFFFFFFF
        a, b = (a + W0) & 0xFFFFFFFF, (b + W1) & 0xFFFFFFFF
    return x0, x1, x2, x3


def words(seed: int, stream: int, counter: int, count: int) -> Words:
    """Returns `count` 32-bit words of draw `counter`.

    Args:
        seed: The run's seed, 64 bits.
        stream: Data-parallel rank, 16 bits.
        counter: Number of the draw, 64 bits.
        count: How many words.
    """
    out = np.empty((count + 3) // 4 * 4, dtype=np.uint32)
    u = np.uint32
    _fill(
        u(seed & 0xFFFFFFFF),
        u(seed >> 32 & 0xFFFFFFFF),
        u((stream & 0xFFFF) << 16),
        u(counter & 0xFFFFFFFF),
        u(counter >> 32 & 0xFFFFFFFF),
        out,
    )
    return out[:count]


def wide_words(seed: int, stream: int, counter: int, count: int) -> npt.NDArray[np.uint64]:
    """Returns `count` 64-bit words (two consecutive 32-bit words each, low word first)."""
    return words(seed, stream, counter, 2 * count).view("<u8").astype(np.uint64)


def unit_float32(w: Words) -> npt.NDArray[np.float32]:
    """Returns multiples of 2^-24 in [0, 1)."""
    return (w >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def unit_float64(w: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Returns multiples of 2^-53 in [0, 1)."""
    return (w >> np.uint64(11)).astype(np.float64) * 2.0**-53


OCTAVES, PIECES, DEGREE = 32, 16, 4


@lru_cache(maxsize=1)
def normal_table() -> npt.NDArray[np.float64]:
    """Returns the committed coefficients of the inverse normal distribution, shape (OCTAVES * PIECES, DEGREE + 1)."""
    text = (Path(__file__).parent / "normal_table.txt").read_text()
    rows = [[float.fromhex(v) for v in line.split()] for line in text.splitlines() if not line.startswith("#")]
    return np.array(rows, dtype=np.float64)


@_jit
def _normal(w: npt.NDArray[Any], table: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    for i in range(w.size):
        sign = w[i] >> np.uint32(31)
        # u = m / 2^33 in (0, 1/2): the tail probability. Its octave and the next bits choose a polynomial.
        m = ((w[i] & np.uint32(0x7FFFFFFF)) << np.uint32(1)) | np.uint32(1)
        octave = 0
        while (m & np.uint32(0x80000000)) == 0:
            m = m << np.uint32(1)
            octave += 1
        piece = (m >> np.uint32(31 - 4)) & np.uint32(15)
        t = np.float64(m & np.uint32(0x07FFFFFF)) * (1.0 / 134217728.0)
        row = octave * PIECES + np.int64(piece)
        z = table[row, DEGREE]
        for d in range(DEGREE - 1, -1, -1):
            z = z * t
            z = z + table[row, d]
        out[i] = np.float32(-z) if sign == 0 else np.float32(z)


def normal_float32(w: Words) -> npt.NDArray[np.float32]:
    """Returns standard normal variates by inverting the distribution function piecewise (error below 2e-7).

    Table look-up and Horner's scheme in float64 with separate multiplications and additions: no operation here has two
    right answers.
    """
    out = np.empty(w.size, dtype=np.float32)
    _normal(w, normal_table(), out)
    return out
