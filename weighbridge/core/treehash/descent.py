"""The way down a BLAKE3 tree to one chunk, in layers of up to 1,024 values, in the plain and in the keyed mode.

A digest with a key and one without are roots of two trees over the same chunks. So whether both are of the same bytes
is a question about one chunk: where the trees part, no 1,024 bytes have both chaining values. A layer has the chaining
values of the nodes below one node: of all nodes of the highest level that has no more than 1,024 of them, and below
each of these, of the next 1,024 nodes, down to the chunks. Bytes of one chunk have one layer, which is their digest.

BLAKE3: O'Connor, Aumasson, Neves, Wilcox-O'Hearn, "BLAKE3: one function, fast everywhere" (2020), sections 2.1 to 2.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.errors import ProofError
from weighbridge.core.treehash import host_loops as host
from weighbridge.core.treehash.parts import chunks_of
from weighbridge.core.treehash.tree import BLOCK, CHUNK, compress, torch_chunks

_BITS = 10
ARITY = 1 << _BITS
"""Most values of a layer; a power of two, so that the nodes of a layer are nodes of the tree."""

_AT_ONCE = 1 << 16


def height(size: int) -> int:
    """Returns how many layers lead to a chunk of so many bytes."""
    count, layers = chunks_of(size), 1
    while count > ARITY:
        count, layers = -(-count // ARITY), layers + 1
    return layers


def width(size: int, path: Sequence[int]) -> int:
    """Returns how many values the layer below a node has.

    Args:
        size: Bytes of the whole.
        path: Places of the nodes that lead there, the highest first; none for the highest layer.

    Raises:
        ProofError: No nodes have these places, or a chunk has none below it.
    """
    layers = height(size)
    if len(path) >= layers:
        raise ProofError(f"{size} bytes have {layers} layers, and no values below a chunk; ask for the chunk.")
    below = -(-chunks_of(size) // _chunks_below(layers - 1 - len(path)))
    return min(ARITY, below - _first(size, path))


def chunk_number(size: int, path: Sequence[int]) -> int:
    """Returns the number of the chunk to which a path leads.

    Raises:
        ProofError: The path leads to none.
    """
    if len(path) != height(size):
        raise ProofError(f"A path to a chunk of {size} bytes has {height(size)} places; give all of them.")
    number = _first(size, path) // ARITY
    if number >= chunks_of(size):
        raise ProofError(f"{size} bytes have no chunk {number}; ask for one that there is.")
    return number


def layer(data: bytes, path: Sequence[int], key: bytes | None = None) -> bytes:
    """Returns the values below a node, one after the other (32 bytes each).

    Args:
        data: The whole.
        path: As for `width`.
        key: 32 bytes for the keyed mode; None for the plain one.

    Raises:
        ProofError: There is no such node.
    """
    count, first = width(len(data), path), _first(len(data), path)
    if chunks_of(len(data)) == 1:
        return blake3(data).digest() if key is None else blake3(data, key=key).digest()
    chunks = _chunks_below(height(len(data)) - 1 - len(path))  # below each node of the layer
    begin, end = first * chunks, min((first + count) * chunks, chunks_of(len(data)))
    values = [_chunks(data, at, min(at + _AT_ONCE, end), key) for at in range(begin, end, _AT_ONCE)]
    level = torch.cat(values)
    while chunks > 1:
        level, chunks = _above(level, key), chunks // 2
    return _written(level)


def value_of_chunk(chunk: bytes, size: int, path: Sequence[int], key: bytes | None = None) -> bytes:
    """Returns the chaining value of a chunk; of an only chunk, the digest.

    Args:
        chunk: Its bytes.
        size: Bytes of the whole.
        path: To the chunk.
        key: As for `layer`.

    Raises:
        ProofError: The chunk of that place has another number of bytes.
    """
    number = chunk_number(size, path)
    if len(chunk) != min(CHUNK, size - CHUNK * number):
        raise ProofError(f"Chunk {number} of {size} bytes has not {len(chunk)} bytes; show the whole chunk.")
    if chunks_of(size) == 1:
        return layer(chunk, (), key)
    return _written(_values(chunk, number, key))


def require_layer(values: bytes, size: int, path: Sequence[int], above: bytes, key: bytes | None = None) -> None:
    """Checks that a layer is the one below a node.

    Args:
        values: As `layer` returns them.
        size: Bytes of the whole.
        path: To the node; none for the digest.
        above: The node's value, or the digest (32 bytes).
        key: As for `layer`.

    Raises:
        ProofError: It is none, or that of another node.
    """
    if len(values) != DIGEST_SIZE * width(size, path):
        raise ProofError(f"Below this node are {width(size, path)} values, and others are shown; show all of them.")
    level = torch.frombuffer(bytearray(values), dtype=torch.int32).view(-1, 8)
    while len(level) > 1:
        level = _above(level, key, root=not path)
    if _written(level) != above:
        raise ProofError("The values that are shown do not give the value above them; show those of this tree.")


def _chunks_below(level: int) -> int:
    """Returns how many chunks lie below a whole node of a level; of level 0 are the chunks."""
    return 1 << (_BITS * level)


def _first(size: int, path: Sequence[int]) -> int:
    """Returns the number of the first node of the layer below a node, on its level."""
    at, count = 0, -(-chunks_of(size) // _chunks_below(height(size) - 1))
    for depth, place in enumerate(path, 1):
        if not 0 <= place < ARITY or at + place >= count:
            raise ProofError(f"There is no node {place} in this layer; name one that there is.")
        at = ARITY * (at + place)
        count = -(-chunks_of(size) // _chunks_below(max(height(size) - 1 - depth, 0)))
    return at


def _chunks(data: bytes, begin: int, end: int, key: bytes | None) -> Tensor:
    """Returns the values of chunks, (n, 8)."""
    last = end == chunks_of(len(data)) and len(data) % CHUNK != 0
    whole = end - begin - int(last)
    found = []
    if whole:
        words = torch.frombuffer(bytearray(data[CHUNK * begin : CHUNK * (begin + whole)]), dtype=torch.int32)
        found.append(torch_chunks(words.view(whole, CHUNK // 4), _start(key), begin, _mode(key)).T)
    if last:
        found.append(_values(data[CHUNK * (end - 1) :], end - 1, key))
    return torch.cat(found)


def _values(chunk: bytes, number: int, key: bytes | None) -> Tensor:
    """Returns the value of one chunk of several, (1, 8)."""
    words = np.frombuffer(chunk.ljust(CHUNK, b"\x00"), dtype="<u4").astype(np.uint32)
    if number:
        value = host.last_chunk(words, len(chunk), _words(key), number, _mode(key))
        return torch.from_numpy(value.astype(np.uint32).view(np.int32))[None]
    # A chunk of the number 0 that is the root would be another one; the first of several is whole.
    return torch_chunks(torch.from_numpy(words.view(np.int32))[None], _start(key), 0, _mode(key)).T


def _above(level: Tensor, key: bytes | None, *, root: bool = False) -> Tensor:
    """Joins values (n, 8) in pairs; an odd one goes up as it is."""
    pairs = len(level) // 2
    flags = _mode(key) | host.PARENT | (host.ROOT if root and len(level) == 2 else 0)
    message = level[: 2 * pairs].reshape(pairs, 16).T.contiguous()
    parents = compress(_start(key)[:, None].expand(8, pairs), message, 0, BLOCK, flags)
    return torch.cat([parents.T, level[2 * pairs :]])


def _mode(key: bytes | None) -> int:
    return 0 if key is None else host.KEYED


def _words(key: bytes | None) -> host.Words:
    return host.IV if key is None else np.frombuffer(key, dtype="<u4").astype(np.uint32)


def _start(key: bytes | None) -> Tensor:
    return torch.from_numpy(_words(key).view(np.int32))


def _written(level: Tensor) -> bytes:
    return level.contiguous().numpy().astype("<i4").tobytes()
