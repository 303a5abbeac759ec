"""The small end of a BLAKE3 tree, on the host: the last chunk and the levels above, once few values are left."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.core.jit import compiled

Words = npt.NDArray[np.uint32]

IV = np.array(
    [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19], dtype=np.uint32
)
PERMUTATION = np.array([2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8])
CHUNK_START, CHUNK_END, PARENT, ROOT, KEYED = 1, 2, 4, 8, 16

_COLUMNS = np.array(
    [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15], [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13],
     [3, 4, 9, 14]]
)  # fmt: skip


@compiled(early=False)
def _rotated(x: Any, bits: int) -> Any:
    return np.uint32((x >> np.uint32(bits)) | (x << np.uint32(32 - bits)))


@compiled(early=False)
def compress(value: Words, block: Words, counter: int, length: int, flags: int) -> Words:
    """The compression function, cut off after the chaining value.

    Args:
        value: Chaining value, (8,).
        block: (16,).
        counter: Number of the chunk; 0 for parents.
        length: Bytes in the block.
        flags: Of the block.
    """
    v, m = np.empty(16, dtype=np.uint32), block.copy()
    v[:8], v[8:12] = value, IV[:4]
    v[12], v[13] = np.uint32(counter & 0xFFFFFFFF), np.uint32(counter >> 32)
    v[14], v[15] = np.uint32(length), np.uint32(flags)
    for _ in range(7):
        for g in range(8):
            a, b, c, d = _COLUMNS[g]
            v[a] = np.uint32(v[a] + v[b] + m[2 * g])
            v[d] = _rotated(v[d] ^ v[a], 16)
            v[c] = np.uint32(v[c] + v[d])
            v[b] = _rotated(v[b] ^ v[c], 12)
            v[a] = np.uint32(v[a] + v[b] + m[2 * g + 1])
            v[d] = _rotated(v[d] ^ v[a], 8)
            v[c] = np.uint32(v[c] + v[d])
            v[b] = _rotated(v[b] ^ v[c], 7)
        m = m[PERMUTATION]
    return v[:8] ^ v[8:]


@compiled(early=False)
def last_chunk(words: Words, size: int, start: Words, number: int, mode: int) -> Words:
    """Returns the chaining value of a tree's last chunk, or the digest if it is the only one.

    Args:
        words: The chunk, filled up with zeros, (256,).
        size: Bytes of it.
        start: Chaining value of the key, (8,).
        number: Of the chunk.
        mode: `KEYED` or 0.
    """
    last = max(0, (size - 1) // 64)
    value = start.copy()
    for place in range(last + 1):
        flags = mode | (CHUNK_START if place == 0 else 0)
        if place == last:
            flags |= CHUNK_END | (ROOT if number == 0 else 0)
        length = 64 if place < last else size - 64 * last
        value = compress(value, words[16 * place : 16 * place + 16], number, length, flags)
    return value


@compiled(early=False)
def root(level: Words, start: Words, mode: int) -> Words:
    """Returns the digest above chaining values in order, (n, 8): pairs are joined, an odd one goes up as it is."""
    level = level.copy()
    count = level.shape[0]
    while count > 1:
        flags = PARENT | mode | (ROOT if count == 2 else 0)
        for i in range(count // 2):
            block = np.concatenate((level[2 * i], level[2 * i + 1]))
            level[i] = compress(start, block, 0, 64, flags)
        if count % 2:
            level[count // 2] = level[count - 1]
        count = (count + 1) // 2
    top: Words = level[0]
    return top
