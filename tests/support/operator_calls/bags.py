"""Calls of what `weighbridge.numerics.rewrites.bags` decomposes."""

from __future__ import annotations

import torch
from support.operator_calls.draw import Call, Draw, call, of
from torch import Tensor

aten = torch.ops.aten


def _bags(draw: Draw, mode: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None, bool, int]:
    rows, count = draw.size(), draw.size(1, 8)
    starts = sorted(draw.size(0, count) for _ in range(draw.size(0, 3)))
    last = draw.flag()
    offsets = torch.tensor([0, *starts, *([count] if last else [])])
    weights = draw.real(count) if mode == 0 and draw.flag() else None
    return draw.real(rows, 3).contiguous(), draw.whole(rows, count), offsets, weights, last, draw.of(-1, 0)


@of("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _(draw: Draw) -> Call:
    mode = draw.of(0, 1)
    weight, indices, offsets, weights, last, padding = _bags(draw, mode)
    return call(weight, indices, offsets, False, mode, False, weights, last, padding)


@of("_embedding_bag_backward.default", "_embedding_bag_dense_backward.default")
def _(draw: Draw, key: str) -> Call:
    mode = draw.of(0, 1)
    weight, indices, offsets, weights, last, padding = _bags(draw, mode)
    out, bag, sizes, largest = aten._embedding_bag(weight, indices, offsets, False, mode, False, weights, last, padding)
    bag = torch.bucketize(torch.arange(len(indices)), offsets[: len(out)], right=True) - 1  # a fast path leaves it out
    # Asked to scale by frequency, the kernel counts the wrong rows (up to 2.13); test_decomposition_table does it.
    grad, rows, by_frequency = draw.real(*out.shape).contiguous(), len(weight), False
    if key == "_embedding_bag_backward.default":
        sparse = False
        rest = (rows, by_frequency, mode, sparse, weights, padding)
        return call(grad, indices, offsets, bag, sizes, largest, *rest)
    return call(grad, indices, bag, sizes, largest, rows, by_frequency, mode, weights, padding)


@of("_embedding_bag_per_sample_weights_backward.default")
def _(draw: Draw) -> Call:
    weight, indices, offsets, _, last, padding = _bags(draw, 0)
    offsets = offsets[:-1] if last else offsets
    bag = torch.bucketize(torch.arange(len(indices)), offsets, right=True) - 1
    return call(draw.real(len(offsets), 3).contiguous(), weight, indices, offsets, bag, 0, padding)
