"""Parts of bytes whose BLAKE3 digest is known: chunks with a proof that they are among them.

A digest is the root of a tree over chunks of 1,024 bytes, so it binds each of them at its place. Chaining values of all
chunks name the digest; some chunks with the values beside their paths do too. What stands in a proof, and where,
follows from the size and from which chunks are asked for: there is one encoding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from weighbridge.core.digests import DIGEST_SIZE, bytes_digest
from weighbridge.core.errors import ProofError
from weighbridge.core.treehash import host_loops as host
from weighbridge.core.treehash.tree import BLOCK, CHUNK, chunk_values, compress

_TOGETHER = 1 << 12
"""Contents of a chunk that are looked at together: PyTorch's operations take as long for one as for a thousand."""


def chunks_of(size: int) -> int:
    """Returns how many chunks so many bytes have."""
    return max(1, -(-size // CHUNK))


def chaining_values(data: bytes) -> bytes:
    """Returns the chaining values of all chunks of some bytes, one after the other; of a single chunk, the digest."""
    count = chunks_of(len(data))
    if count == 1:
        return bytes_digest(data)
    return _written(_values(data, np.arange(count), len(data)))


def chaining_value(chunk: bytes, number: int, size: int) -> bytes:
    """Returns the chaining value of one chunk of several.

    Args:
        chunk: Its bytes.
        number: Which it is.
        size: Of all bytes.
    """
    return _written(_values(chunk, np.array([number]), size))


def any_has(value: bytes, chunks: Iterable[bytes], number: int, size: int) -> bool:
    """Says whether one of many contents of a chunk of several has a chaining value; they are looked at together.

    Args:
        value: The chaining value (32 bytes).
        chunks: What the chunk may hold, each of its size.
        number: Which chunk it is.
        size: Of all bytes.
    """
    rest, last = iter(chunks), number == chunks_of(size) - 1 and size % CHUNK != 0
    while several := list(islice(rest, 1 if last else _TOGETHER)):
        found = _values(b"".join(several), np.full(len(several), number), size)
        if bool((found == _read(value)).all(dim=0).any()):
            return True
    return False


def digest_of(values: bytes, size: int) -> bytes:
    """Returns the digest of bytes whose chaining values are these.

    Raises:
        ProofError: So many bytes have more chunks, or fewer.
    """
    count = chunks_of(size)
    if len(values) != DIGEST_SIZE * count:
        raise ProofError(f"{size} bytes have {count} chunks, and other values are shown; ask for them again.")
    level = _read(values)
    while level.shape[1] > 1:
        level = _above(level)
    return _written(level)


def cut(data: bytes, wanted: Collection[int]) -> bytes:
    """Returns some chunks with their proof.

    Args:
        data: All bytes.
        wanted: Numbers of the chunks.
    """
    known, count = set(wanted), chunks_of(len(data))
    parts = [data[CHUNK * at : CHUNK * (at + 1)] for at in sorted(known)]
    if not known or count == 1:
        return b"".join(parts)
    level = _read(chaining_values(data))
    while level.shape[1] > 1:
        beside = _beside(known, level.shape[1])
        if beside:
            parts.append(_written(level[:, beside]))
        known, level = {at // 2 for at in known}, _above(level)
    return b"".join(parts)


def joined(shown: bytes, wanted: Collection[int], size: int, digest: bytes) -> dict[int, bytes]:
    """Returns the chunks that were shown, by number.

    Args:
        shown: As `cut` returns it.
        wanted: Numbers of the chunks.
        size: Of all bytes.
        digest: Of all bytes (32 bytes).

    Raises:
        ProofError: These are not the chunks of such bytes at these places.
    """
    known, count = sorted(set(wanted)), chunks_of(size)
    if known and not 0 <= known[0] <= known[-1] < count:
        raise ProofError(f"There is no chunk {known[-1]} among {count}; ask for those that there are.")
    lengths = [min(CHUNK, size - CHUNK * at) for at in known]
    body = sum(lengths)
    ends = np.cumsum([0, *lengths]).tolist()
    chunks = {at: shown[ends[i] : ends[i + 1]] for i, at in enumerate(known)}
    if not known or len(shown) < body:
        found = not known and not shown
    elif count == 1:
        found = len(shown) == size and bytes_digest(shown) == digest
    else:
        found = _root(shown, body, known, count, size) == digest
    if not found:
        raise ProofError("The chunks that are shown are not those of the digest; the opening is of other bytes.")
    return chunks


def _root(shown: bytes, body: int, known: list[int], count: int, size: int) -> bytes | None:
    level = dict(zip(known, _values(shown[:body], np.array(known), size).T, strict=True))
    at = body
    while count > 1:
        for place in _beside(set(level), count):
            level[place] = _read(shown[at : at + DIGEST_SIZE].ljust(DIGEST_SIZE, b"\x00"))[:, 0]
            at += DIGEST_SIZE
        pairs = sorted({place // 2 for place in level if place // 2 * 2 + 1 < count})
        flags = host.PARENT | (host.ROOT if count == 2 else 0)
        above = {place // 2: level[place] for place in level if place == count - 1 and not place % 2}
        if pairs:
            left, right = (torch.stack([level[2 * pair + side] for pair in pairs], dim=1) for side in (0, 1))
            joined_ = _compressed(torch.cat([left, right]), flags)
            above |= {pair: joined_[:, i] for i, pair in enumerate(pairs)}
        level, count = above, (count + 1) // 2
    return _written(level[0][:, None]) if at == len(shown) else None


def _beside(known: set[int], count: int) -> list[int]:
    """Returns the nodes of a level that are needed beside the known ones, ascending."""
    return sorted(at ^ 1 for at in known if at ^ 1 not in known and at ^ 1 < count)


def _values(body: bytes, numbers: np.typing.NDArray[np.int64], size: int) -> Tensor:
    """Returns the chaining values of chunks that lie one after the other, (8, n); only the last may be short."""
    length = size - CHUNK * (chunks_of(size) - 1)
    short = numbers[-1] == chunks_of(size) - 1 and length < CHUNK
    whole = len(numbers) - int(short)
    found = []
    if whole:
        words = torch.frombuffer(bytearray(body[: CHUNK * whole]), dtype=torch.int32).view(whole, CHUNK // 4)
        found.append(chunk_values(words, _start(), torch.from_numpy(numbers[:whole]), 0))
    if short:
        end = np.frombuffer(body[CHUNK * whole :].ljust(CHUNK, b"\x00"), dtype="<u4").astype(np.uint32)
        last = host.last_chunk(end, length, host.IV, int(numbers[-1]), 0)
        found.append(torch.from_numpy(last.astype(np.uint32).view(np.int32))[:, None])
    return torch.cat(found, dim=1)


def _above(level: Tensor) -> Tensor:
    count = level.shape[1]
    pairs = count // 2
    message = torch.cat([level[:, 0 : 2 * pairs : 2], level[:, 1 : 2 * pairs : 2]])
    parents = _compressed(message, host.PARENT | (host.ROOT if count == 2 else 0))
    return torch.cat([parents, level[:, 2 * pairs :]], dim=1)


def _compressed(message: Tensor, flags: int) -> Tensor:
    return compress(_start()[:, None].expand(8, message.shape[1]), message, 0, BLOCK, flags)


def _start() -> Tensor:
    return torch.from_numpy(host.IV.view(np.int32))


def _read(values: bytes) -> Tensor:
    return torch.frombuffer(bytearray(values), dtype=torch.int32).view(-1, 8).T.contiguous()


def _written(level: Tensor) -> bytes:
    return level.T.contiguous().numpy().astype("<i4").tobytes()
