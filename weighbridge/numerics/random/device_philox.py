"""The variates of `philox` made where they are needed: the same bits out of PyTorch's integer operations.

Words are int64 tensors with values below 2^32. The product of two of them is taken modulo 2^64, whose upper half is
what a shift that copies the sign leaves below the mask. On a GPU this saves the way from the CPU's memory; the CPU
itself has compiled code for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from weighbridge.numerics.random import philox

Tensor = torch.Tensor

MASK = 0xFFFFFFFF
CHUNK = 1 << 24
"""Words made at a time: each takes some 100 bytes meanwhile."""


def _signed(value: int) -> int:
    """A number below 2^64 as PyTorch's 64-bit integers hold it."""
    return value - (1 << 64) if value >> 63 else value


def _halves(x: Tensor, by: int) -> tuple[Tensor, Tensor]:
    """The upper and lower 32 bits of products of words with a number below 2^32."""
    product = x * _signed(by)
    return (product >> 32) & MASK, product & MASK


def blocks(key: tuple[int, int], counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """Returns Philox-4x32-10 of counter blocks.

    Args:
        key: Two 32-bit numbers.
        counter: Four words of each block; int64 tensors of one shape (n,), or broadcast to it.

    Returns:
        Words, int64, shape (n, 4).
    """
    x0, x1, x2, x3 = counter
    a, b = key
    for _ in range(10):
        (high0, low0), (high1, low1) = _halves(x0, philox.M0), _halves(x2, philox.M1)
        x0, x1, x2, x3 = high1 ^ x1 ^ a, low1, high0 ^ x3 ^ b, low0
        a, b = (a + philox.W0) & MASK, (b + philox.W1) & MASK
    return torch.stack(torch.broadcast_tensors(x0, x1, x2, x3), dim=-1)  # type: ignore[no-untyped-call]


def words(
    seed: int, stream: int, counter: int, count: int, device: torch.device | None = None, first: int = 0
) -> Tensor:
    """Returns 32-bit words of a draw, as `philox.words` numbers them.

    Args:
        seed: The run's seed, 64 bits.
        stream: Data-parallel rank, 16 bits.
        counter: Number of the draw, 64 bits.
        count: How many words.
        device: Where to make them.
        first: Number of the first word; a multiple of 4.

    Returns:
        int64, shape (count,).
    """
    index = torch.arange(first // 4, first // 4 + (count + 3) // 4, device=device)
    rest = [torch.full((1,), v, device=device) for v in (counter & MASK, counter >> 32 & MASK)]
    upper = (index >> 32) | ((stream & 0xFFFF) << 16)
    made = blocks((seed & MASK, seed >> 32 & MASK), (index & MASK, upper, rest[0], rest[1]))
    return made.view(-1)[:count]


def unit_float32(w: Tensor) -> Tensor:
    """Returns multiples of 2^-24 in [0, 1), float32; see `philox.unit_float32`."""
    return (w >> 8).to(torch.float32) * 2.0**-24


def normal_float32(w: Tensor) -> Tensor:
    """Returns standard normal variates, float32; see `philox.normal_float32`."""
    table = torch.from_numpy(philox.normal_table()).to(w.device)
    m = ((w & 0x7FFFFFFF) << 1) | 1
    octave = 32 - torch.frexp(m.to(torch.float64))[1].to(torch.int64)
    m = m << octave
    row = octave * philox.PIECES + ((m >> 27) & 15)
    t = (m & 0x07FFFFFF).to(torch.float64) * 2.0**-27
    z = table[:, philox.DEGREE][row]
    for d in range(philox.DEGREE - 1, -1, -1):
        z = z * t
        z = z + table[:, d][row]
    return torch.where(w >> 31 == 0, -z, z).to(torch.float32)


def integers(w: Tensor, span: int) -> Tensor:
    """Returns 64-bit words modulo `span`.

    Args:
        w: 32-bit words, int64, shape (2 n,); the lower half of each 64-bit word comes first.
        span: At most 2^31, so that no product overflows.

    Returns:
        int64, shape (n,).
    """
    low, high = w[0::2], w[1::2]
    return ((high % span) * ((1 << 32) % span) + low) % span


def order(w: Tensor) -> Tensor:
    """Returns the stable ascending order of 64-bit words, given as for `integers`; int64, shape (n,)."""
    shifted = (w[0::2] | (w[1::2] << 32)) ^ torch.iinfo(torch.int64).min  # in the order of numbers without a sign
    return torch.argsort(shifted, stable=True)


def in_chunks(count: int, part: Callable[[int, int], Tensor]) -> Tensor:
    """Puts together `part(first, count)` over at most `CHUNK` elements at a time."""
    if count <= CHUNK:
        return part(0, count)
    return torch.cat([part(start, min(CHUNK, count - start)) for start in range(0, count, CHUNK)])
