"""BLAKE3 where the memory is: of a tensor's or storage's bytes on any device, without copying them to the host.

On the CPU the `blake3` package does the work. Elsewhere all chunks of 1,024 bytes are compressed at once, with a Triton
kernel if Triton is there and agrees with the package, else with PyTorch's integer operations; then pairs of their
chaining values, level by level, until few are left for the host. All give the same 32 bytes, whatever the device and
the number of threads.

BLAKE3: O'Connor, Aumasson, Neves, Wilcox-O'Hearn, "BLAKE3: one function, fast everywhere" (2020), section 2.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from weighbridge.core.treehash import host_loops as host

CHUNK = 1024
"""Bytes of a leaf of the tree."""
BLOCK = 64
"""Bytes that are compressed at once."""

_AT_ONCE = 1 << 18
"""Chunks that PyTorch's operations take together: their temporaries are about a quarter of what is hashed."""

_FEW = 1 << 12
"""Chaining values that the host joins."""

_SMALL = 1 << 18
"""Bytes that are copied to the host instead: all its kernels would take a device longer."""

Chunks = Callable[[Tensor, Tensor, int, int], Tensor]
"""(whole chunks as int32 words (n, 256); chaining value of the key (8,); first chunk's number; flags) to (8, n)."""


def storage_digest(storage: torch.UntypedStorage, key: bytes | None = None) -> bytes:
    """Returns the 32-byte BLAKE3 digest of a storage's bytes as they lie in memory.

    Args:
        storage: On any device.
        key: 32 bytes for the keyed mode; None for plain hashing.
    """
    if storage.device.type == "cpu":
        data = (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())
        return _on_host(memoryview(data).cast("B"), key)
    with _disable_current_modes(), torch.no_grad():
        return _there_or_here(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage), key)


def tensor_digest(dense: Tensor) -> bytes:
    """Returns the 32-byte BLAKE3 digest of the bytes of a tensor without gaps, as they lie in memory on any device."""
    size = dense.numel() * dense.itemsize
    if dense.is_cpu:  # by its address: an operation is one that a chip would count as the workload's
        data = (ctypes.c_ubyte * size).from_address(dense.data_ptr()) if size else b""
        return _on_host(memoryview(data).cast("B"), None)
    with _disable_current_modes(), torch.no_grad():
        whole = torch.as_strided(dense, (dense.numel(),), (1,), dense.storage_offset())
        return _there_or_here(whole.view(torch.uint8), None)


def _there_or_here(data: Tensor, key: bytes | None) -> bytes:
    if data.numel() <= _SMALL:
        return _on_host(data.cpu().numpy().data, key)
    return device_digest(data, key)


def _on_host(data: memoryview, key: bytes | None) -> bytes:
    threads = blake3.AUTO if len(data) > 1 << 20 else 1
    return (blake3(data, max_threads=threads) if key is None else blake3(data, key=key, max_threads=threads)).digest()


def device_digest(data: Tensor, key: bytes | None = None, chunks: Chunks | None = None) -> bytes:
    """Returns the BLAKE3 digest of bytes, computed on their device.

    Args:
        data: Contiguous 1-D uint8.
        key: 32 bytes for the keyed mode; None for plain hashing.
        chunks: What compresses whole chunks; by default the fastest that this device has.
    """
    start = host.IV if key is None else np.frombuffer(key, dtype="<u4").astype(np.uint32)
    mode = 0 if key is None else host.KEYED
    size = data.numel()
    whole = max(0, (size - 1) // CHUNK)  # the last chunk is apart: it may be short, and it may be the root
    end = np.zeros(CHUNK, dtype=np.uint8)
    end[: size - whole * CHUNK] = data[whole * CHUNK :].cpu().numpy()
    last = host.last_chunk(end.view(np.uint32), size - whole * CHUNK, start, whole, mode)
    if not whole:
        return last.astype("<u4").tobytes()
    body = data[: whole * CHUNK]
    if body.data_ptr() % 4:
        body = body.clone()
    words = body.view(torch.int32).view(whole, CHUNK // 4)
    key_there = _there(start, data.device)
    work = chunks or fastest(data.device)
    values = [work(words[at : at + _AT_ONCE], key_there, at, mode) for at in range(0, whole, _AT_ONCE)]
    level = torch.cat([*values, _there(last, data.device)[:, None]], dim=1)
    while level.shape[1] > _FEW:
        pairs = level.shape[1] // 2
        message = torch.cat([level[:, 0 : 2 * pairs : 2], level[:, 1 : 2 * pairs : 2]])
        parents = compress(key_there[:, None].expand(8, pairs), message, 0, BLOCK, host.PARENT | mode)
        level = torch.cat([parents, level[:, 2 * pairs :]], dim=1)
    few = np.ascontiguousarray(level.cpu().numpy().T).view(np.uint32)
    return host.root(few, start, mode).astype("<u4").tobytes()


def torch_chunks(words: Tensor, start: Tensor, first: int, mode: int) -> Tensor:
    """Compresses whole chunks with PyTorch's operations; see `Chunks`."""
    return chunk_values(words, start, torch.arange(first, first + words.shape[0], device=words.device), mode)


def chunk_values(words: Tensor, start: Tensor, numbers: Tensor, mode: int) -> Tensor:
    """Compresses whole chunks of any numbers (int64) with PyTorch's operations; the rest as for `Chunks`."""
    count = words.shape[0]
    blocks = words.view(count, CHUNK // BLOCK, 16).permute(1, 2, 0).contiguous()
    value = start[:, None].expand(8, count)
    for place in range(CHUNK // BLOCK):
        flags = mode | (host.CHUNK_START if place == 0 else 0)
        flags |= host.CHUNK_END if place == CHUNK // BLOCK - 1 else 0
        value = compress(value, blocks[place], numbers, BLOCK, flags)
    return value


def compress(value: Tensor, message: Tensor, counter: Tensor | int, length: int, flags: int) -> Tensor:
    """The compression function on n inputs at once, cut off after the chaining value.

    Args:
        value: Chaining values, int32 (8, n).
        message: Blocks, int32 (16, n).
        counter: Number of the chunk, int64 (n,), or one for all.
        length: Bytes in the block.
        flags: Of the block.

    Returns:
        New chaining values, int32 (8, n).
    """
    n = value.shape[1]
    low, high = _halves(counter, n, value.device)
    rest = _there(np.array([length, flags]), value.device)[:, None].expand(2, n)
    a, b = value[:4], value[4:]
    c = _there(host.IV[:4], value.device)[:, None].expand(4, n)
    d = torch.cat([low, high, rest])
    for order in _schedule(value.device):
        m = message[order]
        a, b, c, d = _mix(a, b, c, d, m[0:4], m[4:8])
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        a, b, c, d = _mix(a, b, c, d, m[8:12], m[12:16])
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat([a ^ c, b ^ d])


def _mix(a: Tensor, b: Tensor, c: Tensor, d: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The quarter round on four columns at once; int32 additions wrap around."""
    a = a + b + x
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b + y
    d = _rotated(d ^ a, 8)
    c = c + d
    return a, _rotated(b ^ c, 7), c, d


def _rotated(x: Tensor, bits: int) -> Tensor:
    """Rotates int32 to the right; PyTorch's shift to the right copies the sign, which the mask takes away."""
    return ((x >> bits) & ((1 << (32 - bits)) - 1)) | (x << (32 - bits))


def _halves(counter: Tensor | int, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    if isinstance(counter, int):
        both = _there(np.array([counter & 0xFFFFFFFF, counter >> 32]), device)[:, None].expand(2, n)
        return both[:1], both[1:]
    low = (counter & 0xFFFFFFFF).to(torch.int64)
    signed = torch.where(low >= 1 << 31, low - (1 << 32), low)
    return signed.to(torch.int32)[None], (counter >> 32).to(torch.int32)[None]


@cache
def _schedule(device: torch.device) -> tuple[Tensor, ...]:
    """Which words of the block each round takes: even ones of the columns, odd ones, then those of the diagonals."""
    order, rounds = list(range(16)), []
    for _ in range(7):
        rounds.append(torch.tensor([*order[0:8:2], *order[1:8:2], *order[8::2], *order[9::2]], device=device))
        order = [order[i] for i in host.PERMUTATION.tolist()]
    return tuple(rounds)


def _there(words: host.Words, device: torch.device) -> Tensor:
    """32-bit words as int32 on a device, which has the same bits."""
    return torch.from_numpy(words.astype(np.uint32).view(np.int32)).to(device)


@cache
def fastest(device: torch.device) -> Chunks:
    """Returns what compresses chunks fastest on a device: the Triton kernel where it works, else `torch_chunks`."""
    if device.type != "cuda":
        return torch_chunks
    try:
        from weighbridge.core.treehash.triton_chunks import chunks  # noqa: PLC0415 (Triton is there on some machines only)
    except ImportError:
        return torch_chunks
    probe = torch.arange(70 * CHUNK, device=device).to(torch.uint8)
    try:
        agrees = device_digest(probe, chunks=chunks) == blake3(probe.cpu().numpy().data).digest()
    except Exception:  # whatever a compiler that is not needed dies of
        return torch_chunks
    return chunks if agrees else torch_chunks
