"""Calls of what `weighbridge.numerics.rewrites.indexing` decomposes."""

from __future__ import annotations

import torch
from support.operator_calls.draw import Call, Draw, call, of
from torch import Tensor


def _along(draw: Draw) -> tuple[Tensor, int, Tensor, Tensor]:
    """A tensor, a dimension, an index into it, and a source at least as large as the index."""
    x = draw.real(*draw.shape(1))
    dim = draw.of(*range(x.dim()))
    size = [draw.size(1, n) if d != dim else draw.size() for d, n in enumerate(x.shape)]
    index = draw.whole(x.shape[dim], *size)
    return x, dim, index, draw.apart(*[n + draw.size(0, 1) for n in size])


@of("item.default")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.of((), (1,), (1, 1))))


@of("unsafe_split.Tensor", "unsafe_split_with_sizes.default")
def _(draw: Draw, key: str) -> Call:
    n = draw.size(2, 6)
    x = draw.real(n, draw.size())
    return call(x, draw.size(1, n), 0) if key.endswith("Tensor") else call(x, [n - 1, 1], 0)


@of("_pack_padded_sequence.default")
def _(draw: Draw) -> Call:
    lengths = torch.tensor(sorted((draw.size() for _ in range(draw.size(1, 3))), reverse=True))
    first, t = draw.flag(), int(lengths[0])
    shape = (len(lengths), t) if first else (t, len(lengths))
    return call(draw.real(*shape, draw.size(1, 2)), lengths, first)


@of("scatter_reduce.two", "scatter_reduce_.two")
def _(draw: Draw) -> Call:
    reduce = draw.of("sum", "mean", "amax", "amin")
    return call(*_along(draw), reduce, include_self=draw.flag())


@of("scatter.reduce", "scatter.value_reduce")
def _(draw: Draw, key: str) -> Call:
    x, dim, index, src = _along(draw)
    return call(x, dim, index, src if key == "scatter.reduce" else 1.5, reduce="add")


@of("index_copy.default", "index_copy_.default")
def _(draw: Draw) -> Call:
    shape = draw.shape(1)
    dim = draw.of(*range(-len(shape), len(shape)))
    count = draw.size(1, shape[dim])
    source = list(shape)
    source[dim] = count
    return call(draw.real(*shape), dim, draw.distinct(shape[dim], count), draw.real(*source))


@of("put.default", "put_.default")
def _(draw: Draw) -> Call:
    x = draw.real(*draw.shape(1))
    accumulate, count = draw.flag(), draw.size(1, x.numel())
    index = draw.whole(x.numel(), count) if accumulate else draw.distinct(x.numel(), count)
    return call(x, index - draw.of(0, x.numel()), draw.real(count), accumulate)


@of("_unsafe_index_put.default")
def _(draw: Draw) -> Call:
    n, m = draw.size(), draw.size()
    count = draw.size(1, n)
    return call(draw.real(n, m), [draw.distinct(n, count)], draw.real(count, m), draw.flag())


@of("diagonal_backward.default")
def _(draw: Draw) -> Call:
    n, m = draw.size(), draw.size()
    offset = draw.of(*range(1 - n, m))
    return call(draw.real(torch.zeros(n, m).diagonal(offset).numel()), [n, m], offset, 0, 1)


@of("trace.default")
def _(draw: Draw) -> Call:
    return call(draw.real(draw.size(), draw.size()))


@of("unfold_backward.default")
def _(draw: Draw) -> Call:
    n, m = draw.size(2, 7), draw.size()
    size, step = draw.size(1, n), draw.size(1, 3)
    return call(draw.real(*torch.zeros(n, m).unfold(0, size, step).shape), [n, m], 0, size, step)


@of("masked_scatter_backward.default")
def _(draw: Draw) -> Call:
    shape = draw.shape(1)
    mask = draw.real(*shape) > 0
    return call(draw.real(*shape), mask, [int(mask.sum()) + draw.size(0, 3)])


@of("index_reduce.default")
def _(draw: Draw) -> Call:
    shape = draw.shape(1)
    dim, count = draw.of(*range(-len(shape), len(shape))), draw.size()
    source = list(shape)
    source[dim] = count
    reduce = draw.of("mean", "amax", "amin")
    index = draw.whole(shape[dim], count)
    return call(draw.real(*shape), dim, index, draw.apart(*source), reduce, include_self=draw.flag())


@of("embedding_renorm_.default")
def _(draw: Draw) -> Call:
    weight = draw.real(draw.size(), draw.size()).contiguous()
    return call(weight, draw.whole(len(weight), *draw.shape(1, 2)), 1.0, draw.of(1.0, 2.0))


@of("channel_shuffle.default")
def _(draw: Draw) -> Call:
    groups = draw.size(1, 3)
    return call(draw.real(2, groups * draw.size(1, 3), *draw.shape(1, 2)).contiguous(), groups)
