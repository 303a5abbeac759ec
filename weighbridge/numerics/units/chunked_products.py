"""Products of 16-bit matrices in float64, and how large a unit's accumulators were: the same bits everywhere.

A replayer that has not the unit of a run takes these products for its own wide results, and the bounds of the unit's
errors are made of the partial sums of chunks (`unit_bounds`). What an entry of a rounding log means depends on the
range that the bound gives, so the bound must not depend on a library, an instruction set, or the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weighbridge.numerics.units.chunked_tiles import COLUMNS, ROWS, accumulate, norms

Tensor = torch.Tensor

CHUNK = 256
"""Terms of a chunk."""
PACKED = 1 << 23
"""Elements of one operand that are packed at once, unless one panel has more."""


@dataclass(frozen=True, slots=True)
class Chunked:
    """A product and the sizes of its accumulators.

    Attributes:
        sums: a @ b in float64, added along K one by one from +0; (M, N) or (B, M, N).
        sizes: With P_c the sum of the first c chunks, and a_c and b_c the parts of the operands in chunk c, the sum
            over c of m_c = max(|P_(c-1)|, |P_c|) + norm(a_c) * norm(b_c) / 16, or of its square; the same shape.
    """

    sums: Tensor
    sizes: Tensor


def chunked(a: Tensor, b: Tensor, chunk: int = CHUNK, *, squared: bool = False) -> Chunked:
    """Returns a @ b and its accumulators' sizes, in float64 on the processor.

    Args:
        a: (M, K) or (B, M, K), of any floating type, on any device; where its values have 16 bits, the same bits come
            out on all machines.
        b: (K, N) or (B, K, N), the same.
        chunk: Terms of a chunk.
        squared: Whether sizes are squared before they are added.
    """
    shape = *a.shape[:-1], b.shape[-1]
    if not a.numel() or not b.numel():
        nothing = torch.zeros(shape, dtype=torch.float64)
        return Chunked(nothing, nothing.clone())
    a, b = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
    sums, sizes = (torch.empty(a.shape[0], *shape[-2:], dtype=torch.float64) for _ in range(2))
    for n in range(a.shape[0]):
        _one(a[n], b[n].mT, sums[n], sizes[n], chunk, squared)
    return Chunked(sums.view(shape), sizes.view(shape))


def _one(a: Tensor, b: Tensor, sums: Tensor, sizes: Tensor, chunk: int, squared: bool) -> None:
    """Computes one product of (M, K) and (N, K), some lines of both at a time."""
    terms = a.shape[1]
    rows, columns = (max(PACKED // (terms * lines), 1) * lines for lines in (ROWS, COLUMNS))
    for top in range(0, a.shape[0], rows):
        left, of_left = _panels(a[top : top + rows], ROWS, chunk)
        for start in range(0, b.shape[0], columns):
            right, of_right = _panels(b[start : start + columns], COLUMNS, chunk)
            some, size = (
                torch.empty(left.shape[0] * ROWS, right.shape[0] * COLUMNS, dtype=torch.float64) for _ in range(2)
            )
            panels = left.numpy(), of_left.numpy(), right.numpy(), of_right.numpy()
            accumulate(*panels, some.numpy(), size.numpy(), chunk, squared)
            place = sums[top : top + rows, start : start + columns]
            place.copy_(some[: place.shape[0], : place.shape[1]])
            sizes[top : top + rows, start : start + columns].copy_(size[: place.shape[0], : place.shape[1]])


def _panels(x: Tensor, lines: int, chunk: int) -> tuple[Tensor, Tensor]:
    """Packs lines of K terms into panels, with the norms of their chunks.

    Args:
        x: (lines, K).
        lines: Lines of a panel.
        chunk: Terms of a chunk.

    Returns:
        (panels, K, lines) and (panels, chunks, lines), float64.
    """
    wide = torch.nn.functional.pad(x.detach().to("cpu", torch.float64), (0, 0, 0, -x.shape[0] % lines))
    panels = wide.reshape(-1, lines, wide.shape[1]).mT.contiguous()
    sizes = torch.empty(panels.shape[0], -(-panels.shape[1] // chunk), lines, dtype=torch.float64)
    norms(panels.numpy(), chunk, sizes.numpy())
    return panels, sizes
