"""Products of 16-bit matrices as VDPBF16PS computes them in chains, bit for bit and fast on any processor.

The model in `x86` says what the unit is; this computes the same, some thousand times as fast, so that a run whose draft
names the unit can be recorded and replayed with it. Operands are packed into panels that a tile reads from front to
back. Which tiles need no flushing follows from their operands: where all products are multiples of some q >= 2^-126, so
are all sums, rounded ones included.
"""

from __future__ import annotations

import torch

from weighbridge.numerics.units.fused_tiles import COLUMNS, ROWS, TINY, multiply

Tensor = torch.Tensor

CHAIN = 1024
"""Products of a chain, as oneDNN has them with AVX512_BF16."""
PACKED = 1 << 24
"""Elements that are packed at once, unless one chain has more: many small products are filled up to sixteen times."""
_NONE = 1 << 10
"""Least exponent of a panel of zeros."""


def product(a: Tensor, b: Tensor, chain: int = CHAIN) -> Tensor:
    """Returns a @ b in float32, as `units.named("vdpbf16ps")` does in chains that begin at zero.

    Args:
        a: (M, K) or (B, M, K); bfloat16 or float16, or float32 that holds values of one of them; on any device.
        b: (K, N) or (B, K, N), the same.
        chain: Products of a chain, an even number; chains are added in order, in float32.

    Returns:
        (M, N) or (B, M, N), float32, row-major, on the device of `a`. Zeros are +0. Which NaN stands where one does is
        not said.
    """
    if a.shape[-2] > b.shape[-1]:  # the longer side lies along vectors; products commute
        return _product(b.mT, a.mT, chain).mT.contiguous().to(a.device)
    return _product(a, b, chain).to(a.device)


def _product(a: Tensor, b: Tensor, chain: int) -> Tensor:
    shape = *a.shape[:-1], b.shape[-1]
    if not a.numel() or not b.numel():
        return torch.zeros(shape)
    terms = a.shape[-1]
    a, b = a.reshape(-1, shape[-2], terms), b.mT.reshape(-1, shape[-1], terms)
    high, broad = (n + -n % lines for n, lines in ((shape[-2], ROWS), (shape[-1], COLUMNS)))
    piece = max(PACKED // (max(high, broad) * chain), 1) * chain
    few = max(PACKED // max(max(high, broad) * min(piece, terms), high * broad), 1)
    out = torch.empty(a.shape[0], *shape[-2:])
    for first in range(0, a.shape[0], few):
        some = slice(first, first + few)
        tiles = torch.zeros(len(a[some]), high, broad)
        for start in range(0, terms, piece):
            left, of_left = _panels(a[some, :, start : start + piece], ROWS)
            right, of_right = _panels(b[some, :, start : start + piece], COLUMNS)
            multiply(left.numpy(), of_left.numpy(), right.numpy(), of_right.numpy(), tiles.numpy(), chain // 2)
        out[some] = tiles[:, : shape[-2], : shape[-1]]
    return out.reshape(shape)


def _panels(x: Tensor, lines: int) -> tuple[Tensor, Tensor]:
    """Packs lines of K products into panels, flushed, and finds their least exponents.

    Args:
        x: (B, lines, K).
        lines: Lines of a panel.

    Returns:
        (B, panels, K made even, lines) and (B, panels).
    """
    count, length = x.shape[-2:]
    wide = x.detach().to("cpu", torch.float32)
    wide = torch.where(wide.abs() < TINY, wide * 0.0, wide)
    padded = torch.nn.functional.pad(wide, (0, length % 2, 0, -count % lines))
    panels = padded.reshape(-1, padded.shape[-2] // lines, lines, padded.shape[-1])
    exponents = (panels.view(torch.int32) >> 23 & 0xFF) - 127
    least = torch.where(panels == 0, _NONE, exponents).amin((2, 3))
    return panels.mT.contiguous(), least.to(torch.int64)
