"""Calls of every decomposed overload with operands of any small shape, drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from weighbridge.numerics import alignment  # noqa: F401 (enters the table)
from weighbridge.numerics.rewriting import TABLE

aten = torch.ops.aten


class Draw:
    """Draws sizes, choices and tensors; real numbers are float64 unless an operation asks for another type."""

    dtype = torch.float64

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def size(self, low: int = 1, high: int = 5) -> int:
        return self._data.draw(st.integers(low, high))

    def of(self, *options: Any) -> Any:
        return self._data.draw(st.sampled_from(options))

    def flag(self) -> bool:
        return self._data.draw(st.booleans())

    def shape(self, low: int = 0, high: int = 3) -> tuple[int, ...]:
        return tuple(self._data.draw(st.lists(st.integers(1, 4), min_size=low, max_size=high)))

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._data.draw(st.integers(0, 10_000)))

    def real(self, *shape: int) -> Tensor:
        """Normal variates, sometimes laid out in another order of dimensions."""
        if len(shape) > 1 and self.flag():
            return torch.randn(shape[::-1], generator=self._generator(), dtype=self.dtype).permute(
                *range(len(shape))[::-1]
            )
        return torch.randn(shape, generator=self._generator(), dtype=self.dtype)

    def positive(self, *shape: int) -> Tensor:
        return self.real(*shape).abs() + 0.1

    def apart(self, *shape: int) -> Tensor:
        """Numbers that differ by a lot, in any order: where they are sorted or compared, rounding decides nothing."""
        count = int(torch.Size(shape).numel())
        order = torch.randperm(count, generator=self._generator())
        return ((order - count // 2).to(self.dtype) / 2 + 0.125).reshape(shape)

    def whole(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=self._generator())

    def distinct(self, high: int, count: int) -> Tensor:
        return torch.randperm(high, generator=self._generator())[:count]

    def matrix(self, n: int) -> Tensor:
        """Matrices that are safe to invert and need their rows exchanged."""
        batch = self.of((), (2,))
        return (torch.randn(*batch, n, n, generator=self._generator(), dtype=self.dtype) + 4 * torch.eye(n)).flip(-2)


@dataclass
class Call:
    """Operands."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


CALLS: dict[str, Callable[[Draw], Call]] = {}


def of(*keys: str) -> Callable[[Callable[..., Call]], Callable[..., Call]]:
    """Registers a function of a `Draw` (and of the key, if it takes two operands) for overloads."""

    def add(function: Callable[..., Call]) -> Callable[..., Call]:
        for key in keys:
            takes_key = function.__code__.co_argcount == 2
            CALLS[key] = (lambda draw, k=key: function(draw, k)) if takes_key else function
        return function

    return add


def call(*args: Any, **kwargs: Any) -> Call:
    return Call(args, kwargs)


# --- element by element ---------------------------------------------------------------------------------------------


@of("add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor", "rsub.Tensor")
def _(draw: Draw) -> Call:
    shape = draw.shape()
    return call(draw.real(*shape), draw.real(*shape[1:]), alpha=draw.of(2, -0.5, 0.1))


@of("add.Scalar", "add_.Scalar", "sub.Scalar", "sub_.Scalar", "rsub.Scalar")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.shape()), draw.of(1, -0.3, 2.5), draw.of(2, -0.5, 0.1))


@of("lerp.Scalar", "lerp_.Scalar", "lerp.Tensor", "lerp_.Tensor")
def _(draw: Draw, key: str) -> Call:
    shape = draw.shape()
    weight = draw.real(*shape) if key.endswith("Tensor") else draw.of(0.0, 0.3, 0.5, 0.9, 1.0, -2.0)
    return call(draw.real(*shape), draw.real(*shape), weight)


@of("addcmul.default", "addcmul_.default", "addcdiv.default", "addcdiv_.default")
def _(draw: Draw) -> Call:
    shape = draw.shape()
    return call(draw.real(*shape), draw.real(*shape[1:]), draw.positive(*shape), value=draw.of(1, 2, -0.3))


@of("pow.Tensor_Scalar")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.shape()), draw.of(2, 3, 2.0, 3.0))


@of("round.decimals")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.shape()) * 100, decimals=draw.of(0, 1, 2, -1))


@of("celu.default", "celu_.default")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.shape()), draw.of(0.7, 1.0, 2.0))


@of("sinc.default", "logit.default", "log_sigmoid_forward.default")
def _(draw: Draw, key: str) -> Call:
    x = draw.real(*draw.shape())
    return call(x.sigmoid() if key.startswith("logit") else x)


@of("deg2rad.default", "rad2deg.default", "special_entr.default")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.shape()))


@of("logspace.default")
def _(draw: Draw) -> Call:
    """In float32: what a program asks for when it says nothing."""
    return call(draw.of(0.0, -1.5), draw.of(1.0, 3.0), draw.size(1, 6), draw.of(10.0, 2.0))


@of("logit_backward.default")
def _(draw: Draw) -> Call:
    shape = draw.shape()
    return call(draw.real(*shape), draw.real(*shape).sigmoid(), draw.of(None, 0.1))


@of("log_sigmoid_backward.default")
def _(draw: Draw) -> Call:
    shape = draw.shape()
    x = draw.real(*shape)
    return call(draw.real(*shape), x, aten.log_sigmoid_forward(x)[1])


@of("sigmoid_backward.default", "tanh_backward.default")
def _(draw: Draw) -> Call:
    """Of float32: what is decomposed."""
    shape = draw.shape()
    return call(draw.real(*shape).to(torch.float32), draw.real(*shape).sigmoid().to(torch.float32))


@of("_prelu_kernel.default")
def _(draw: Draw) -> Call:
    shape = draw.shape(1)
    return call(draw.real(*shape), draw.real(*shape))


@of("_prelu_kernel_backward.default")
def _(draw: Draw) -> Call:
    shape = draw.shape(1)
    return call(draw.real(*shape), draw.real(*shape), draw.real(*shape))


@of("glu.default", "glu_backward.default")
def _(draw: Draw, key: str) -> Call:
    shape = list(draw.shape(1))
    dim = draw.of(*range(-len(shape), len(shape)))
    half = list(shape)
    shape[dim] *= 2
    x = draw.real(*shape)
    return call(x, dim) if key.startswith("glu.") else call(draw.real(*half), x, dim)


@of("native_dropout_backward.default")
def _(draw: Draw) -> Call:
    shape = draw.shape()
    return call(draw.real(*shape), draw.real(*shape) > 0, draw.of(1.0, 1.25, 2.0))


@of("item.default")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.of((), (1,), (1, 1))))


@of("unsafe_split.Tensor", "unsafe_split_with_sizes.default")
def _(draw: Draw, key: str) -> Call:
    n = draw.size(2, 6)
    x = draw.real(n, draw.size())
    return call(x, draw.size(1, n), 0) if key.endswith("Tensor") else call(x, [n - 1, 1], 0)


# --- means and norms ------------------------------------------------------------------------------------------------


@of("mean.default", "mean.dim")
def _(draw: Draw, key: str) -> Call:
    shape = draw.shape(0 if key == "mean.default" else 1)
    x = draw.real(*shape).to(torch.float32)
    if key == "mean.default":
        return call(x)
    return call(x, [draw.of(*range(-len(shape), len(shape)))], draw.flag())


@of("native_layer_norm.default", "native_layer_norm_backward.default")
def _(draw: Draw, key: str) -> Call:
    """Of 16 bits: what is decomposed. Differences are of one rounding."""
    shape = draw.shape(1)
    inner = list(shape[draw.of(*range(len(shape))) :])
    x, weight, bias = (draw.real(*s).to(torch.bfloat16) for s in (shape, inner, inner))
    if key == "native_layer_norm.default":
        return call(x, inner, weight, bias, 1e-2)
    _, mean, rstd = aten.native_layer_norm.default(x, inner, weight, bias, 1e-2)
    return call(draw.real(*shape).to(torch.bfloat16), x, inner, mean, rstd, weight, bias, [True, True, True])


def _batch_norm(draw: Draw) -> tuple[Tensor, ...]:
    c = draw.size()
    x = draw.real(draw.size(2, 4), c, *draw.shape(0, 2))
    return x, draw.real(c), draw.real(c), draw.real(c), draw.positive(c)


@of("native_batch_norm.default", "_native_batch_norm_legit.default")
def _(draw: Draw) -> Call:
    return call(*_batch_norm(draw), draw.flag(), 0.1, 1e-3)


@of("_native_batch_norm_legit.no_stats")
def _(draw: Draw) -> Call:
    return call(*_batch_norm(draw)[:3], True, 0.1, 1e-3)


@of("_native_batch_norm_legit_no_training.default")
def _(draw: Draw) -> Call:
    return call(*_batch_norm(draw), 0.1, 1e-3)


@of("native_batch_norm_backward.default")
def _(draw: Draw) -> Call:
    x, weight, bias, mean, var = _batch_norm(draw)
    train = draw.flag()
    _, saved, rstd = aten.native_batch_norm(x, weight, bias, mean.clone(), var.clone(), train, 0.1, 1e-3)
    grad, mask = draw.real(*x.shape).contiguous(), [True, True, True]
    return call(grad, x.contiguous(), weight, mean, var, saved, rstd, train, 1e-3, mask)


def _grouped(draw: Draw) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    group, each, n = draw.size(1, 3), draw.size(1, 3), draw.size(1, 3)
    x = torch.randn(n, group * each, *draw.shape(0, 2), dtype=draw.dtype)
    c = group * each
    return x, draw.real(c), draw.real(c), [n, c, x[0, 0].numel(), group]


@of("native_group_norm.default")
def _(draw: Draw) -> Call:
    x, weight, bias, sizes = _grouped(draw)
    affine = draw.flag()
    return call(x, weight if affine else None, bias if affine else None, *sizes, 1e-3)


@of("native_group_norm_backward.default")
def _(draw: Draw) -> Call:
    x, weight, bias, sizes = _grouped(draw)
    _, mean, rstd = aten.native_group_norm(x, weight, bias, *sizes, 1e-3)
    return call(draw.real(*x.shape).contiguous(), x, mean, rstd, weight, *sizes, [True, True, True])


@of("_weight_norm_interface.default", "_weight_norm_interface_backward.default")
def _(draw: Draw, key: str) -> Call:
    v = torch.randn(draw.shape(2), dtype=draw.dtype)
    dim = draw.of(0, v.dim() - 1)
    g = draw.real(*[n if d == dim else 1 for d, n in enumerate(v.shape)]).contiguous()
    if key == "_weight_norm_interface.default":
        return call(v, g, dim)
    return call(draw.real(*v.shape).contiguous(), v, g, aten._weight_norm_interface(v, g, dim)[1], dim)


@of("_fused_rms_norm_backward.default")
def _(draw: Draw) -> Call:
    shape = draw.shape(1)
    inner = list(shape[-1:])
    x, weight = draw.real(*shape), draw.real(*inner)
    rstd = (x.square().mean(-1, keepdim=True) + 1e-3).rsqrt()
    return call(draw.real(*shape), x, inner, rstd, weight, [True, True])


# --- order and counting ---------------------------------------------------------------------------------------------


@of("sort.default", "topk.default", "kthvalue.default", "median.dim")
def _(draw: Draw, key: str) -> Call:
    shape = draw.shape(1)
    dim = draw.of(*range(-len(shape), len(shape)))
    x, n = draw.apart(*shape), shape[dim]
    if key == "sort.default":
        return call(x, dim, draw.flag())
    if key == "topk.default":
        return call(x, draw.size(0, n), dim, draw.flag())
    return call(x, draw.size(1, n), dim, draw.flag()) if key == "kthvalue.default" else call(x, dim, draw.flag())


@of("_unique2.default")
def _(draw: Draw) -> Call:
    x = draw.whole(3, *draw.shape(1)).to(draw.of(draw.dtype, torch.int64))
    return call(x, True, draw.flag(), draw.flag())


@of("histc.default")
def _(draw: Draw) -> Call:
    """Away from the ends of bins, where the last bit decides."""
    x = draw.whole(8, draw.size(1, 20)).to(torch.float32) + 0.37
    return call(x, *draw.of((8, 0, 8), (4, 0, 8), (16, -4, 12), (2, 2, 6)))


@of("_pack_padded_sequence.default")
def _(draw: Draw) -> Call:
    lengths = torch.tensor(sorted((draw.size() for _ in range(draw.size(1, 3))), reverse=True))
    first, t = draw.flag(), int(lengths[0])
    shape = (len(lengths), t) if first else (t, len(lengths))
    return call(draw.real(*shape, draw.size(1, 2)), lengths, first)


@of("cummax.default", "cummin.default")
def _(draw: Draw) -> Call:
    """Ties and NaN count: of equals the later, and what is no number stays."""
    shape = draw.shape()
    x = draw.whole(4, *shape).to(draw.dtype)
    if draw.flag() and x.numel():
        x.view(-1)[draw.size(0, x.numel() - 1)] = float("nan")
    return call(x, draw.of(*range(-len(shape), len(shape))) if shape else 0)


# --- indices --------------------------------------------------------------------------------------------------------


def _along(draw: Draw) -> tuple[Tensor, int, Tensor, Tensor]:
    """A tensor, a dimension, an index into it, and a source at least as large as the index."""
    x = draw.real(*draw.shape(1))
    dim = draw.of(*range(x.dim()))
    size = [draw.size(1, n) if d != dim else draw.size() for d, n in enumerate(x.shape)]
    index = draw.whole(x.shape[dim], *size)
    return x, dim, index, draw.apart(*[n + draw.size(0, 1) for n in size])


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


# --- windows --------------------------------------------------------------------------------------------------------


@of("im2col.default", "col2im.default")
def _(draw: Draw, key: str) -> Call:
    high, wide = draw.size(3, 6), draw.size(3, 6)
    settings = [[draw.size(1, 2), draw.size(1, 2)], [1, draw.size(1, 2)], [draw.size(0, 1), 1], [draw.size(1, 2), 1]]
    x = draw.real(2, draw.size(1, 2), high, wide)
    if key == "im2col.default":
        return call(x, *settings)
    return call(draw.real(*aten.im2col(x, *settings).shape), [high, wide], *settings)


@of("adaptive_max_pool2d_backward.default", "adaptive_max_pool3d_backward.default")
def _(draw: Draw, key: str) -> Call:
    n = 2 if "2d" in key else 3
    x = draw.apart(2, draw.size(1, 2), *(draw.size(2, 5) for _ in range(n)))
    pool = F.adaptive_max_pool2d if n == 2 else F.adaptive_max_pool3d
    out, indices = pool(x, tuple(draw.size(1, 3) for _ in range(n)), return_indices=True)
    return call(draw.real(*out.shape).contiguous(), x, indices)


@of("adaptive_avg_pool3d_backward.grad_input")
def _(draw: Draw) -> Call:
    x = draw.real(1, 2, draw.size(2, 4), draw.size(2, 4), draw.size(2, 4)).contiguous()
    out = F.adaptive_avg_pool3d(x, (draw.size(1, 2), 1, 2))
    return call(draw.real(*out.shape).contiguous(), x, grad_input=torch.zeros_like(x))


@of("upsample_linear1d.default", "upsample_linear1d_backward.default")
def _(draw: Draw, key: str) -> Call:
    n, m = draw.size(2, 5), draw.size(2, 8)
    align = draw.flag()
    if key == "upsample_linear1d.default":
        return call(draw.real(2, 3, n).contiguous(), [m], align)
    return call(draw.real(2, 3, m).contiguous(), [m], [2, 3, n], align)


@of("max_unpool2d.default", "max_unpool3d.default")
def _(draw: Draw, key: str) -> Call:
    n = 2 if "2d" in key else 3
    sizes = [2 * draw.size(1, 2) for _ in range(n)]
    x = draw.apart(2, draw.size(1, 2), *sizes)
    out, indices = (F.max_pool2d if n == 2 else F.max_pool3d)(x, 2, return_indices=True)
    return call(out, indices, sizes) if n == 2 else call(out, indices, sizes, [2, 2, 2], [0, 0, 0])


@of("channel_shuffle.default")
def _(draw: Draw) -> Call:
    groups = draw.size(1, 3)
    return call(draw.real(2, groups * draw.size(1, 3), *draw.shape(1, 2)).contiguous(), groups)


@of("rot90.default")
def _(draw: Draw) -> Call:
    return call(draw.real(draw.size(), draw.size(), 2), draw.size(0, 5) - 2, draw.of([0, 1], [1, 2], [2, 0]))


# --- products and distances -----------------------------------------------------------------------------------------


@of("addbmm.default")
def _(draw: Draw) -> Call:
    b, n, k, m = (draw.size() for _ in range(4))
    return call(draw.real(n, m), draw.real(b, n, k), draw.real(b, k, m), beta=draw.of(1, 0.5), alpha=draw.of(1, -2.0))


@of("_grouped_mm.default")
def _(draw: Draw) -> Call:
    """Groups of eight rows in bfloat16, as the kernel wants them."""
    ends = torch.tensor([8 * draw.size(0, 2), 24], dtype=torch.int32)
    a, b = torch.randn(24, 16, dtype=torch.bfloat16), torch.randn(2, 16, 8, dtype=torch.bfloat16)
    return call(a, b.mT.contiguous().mT, ends)


@of("_trilinear.default")
def _(draw: Draw) -> Call:
    n, i, j, o = (draw.size() for _ in range(4))
    return call(draw.real(n, i), draw.real(o, i, j), draw.real(n, j), [1, 3], [0], [1, 2], [2, 3])


ORDERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.2, float("inf"))


@of("_cdist_forward.default", "_euclidean_dist.default")
def _(draw: Draw, key: str) -> Call:
    n, m, d = draw.size(), draw.size(), draw.size()
    x, y = draw.real(n, d).contiguous(), draw.real(m, d).contiguous()
    return call(x, y, draw.of(*ORDERS), 2) if key == "_cdist_forward.default" else call(x, y)


@of("_cdist_backward.default")
def _(draw: Draw) -> Call:
    n, m, d = draw.size(), draw.size(), draw.size()
    x, y = draw.real(n, d).contiguous(), draw.real(m, d).contiguous()
    p = draw.of(*ORDERS)
    return call(draw.real(n, m).contiguous(), x, y, p, aten._cdist_forward(x, y, p, 2))


@of("_pdist_forward.default")
def _(draw: Draw) -> Call:
    return call(draw.real(draw.size(2, 5), draw.size()).contiguous(), 2.0)


@of("_pdist_backward.default")
def _(draw: Draw) -> Call:
    x = draw.real(draw.size(2, 5), draw.size()).contiguous()
    out = aten._pdist_forward(x, 2.0)
    return call(draw.real(*out.shape), x, 2.0, out)


@of("addr.default")
def _(draw: Draw) -> Call:
    n, m = draw.size(), draw.size()
    return call(draw.real(n, m), draw.real(n), draw.real(m), beta=draw.of(1, 0, 0.5), alpha=draw.of(1, -2.0))


@of("renorm.default")
def _(draw: Draw) -> Call:
    shape = draw.shape(2)
    return call(draw.real(*shape), draw.of(1.0, 2.0), draw.of(*range(len(shape))), 1.0)


@of("cholesky_solve.default")
def _(draw: Draw) -> Call:
    a = draw.matrix(draw.size())
    upper = draw.flag()
    factor = torch.linalg.cholesky(a @ a.mT + torch.eye(a.shape[-1]), upper=upper)
    return call(draw.real(*a.shape[:-1], 2), factor, upper)


@of("linalg_cross.default")
def _(draw: Draw) -> Call:
    n = draw.size()
    return call(draw.real(n, 3), draw.real(n, 3))


@of("allclose.default")
def _(draw: Draw) -> Call:
    x = draw.real(*draw.shape())
    return call(x, x + draw.of(0.0, 1e-9, 1e-3), draw.of(1e-5, 1e-2), draw.of(0.0, 1e-8))


# --- bags -----------------------------------------------------------------------------------------------------------


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


# --- losses ---------------------------------------------------------------------------------------------------------


@of("soft_margin_loss.default", "soft_margin_loss_backward.default")
def _(draw: Draw, key: str) -> Call:
    shape, reduction = draw.shape(1), draw.of(0, 1, 2)
    x, target = draw.real(*shape), draw.real(*shape).sign()
    if key == "soft_margin_loss.default":
        return call(x, target, reduction)
    return call(draw.real(*(shape if reduction == 0 else ())), x, target, reduction)


@of("multi_margin_loss.default", "multi_margin_loss_backward.default")
def _(draw: Draw, key: str) -> Call:
    n, c = draw.size(), draw.size(2, 5)
    x, target = draw.real(n, c).contiguous(), draw.whole(c, n)
    reduction, weight = draw.of(0, 1, 2), draw.positive(c) if draw.flag() else None
    rest = (x, target, draw.of(1, 2), draw.of(1, 0.5), weight, reduction)
    return call(*rest) if "backward" not in key else call(draw.real(*((n,) if reduction == 0 else ())), *rest)


@of("multilabel_margin_loss_forward.default", "multilabel_margin_loss_backward.default")
def _(draw: Draw, key: str) -> Call:
    n, c = draw.size(), draw.size(2, 5)
    x, target, reduction = draw.real(n, c).contiguous(), torch.full((n, c), -1), draw.of(0, 1, 2)
    for row in range(n):
        count = draw.size(0, c)
        target[row, :count] = draw.distinct(c, count)
    if key == "multilabel_margin_loss_forward.default":
        return call(x, target, reduction)
    out, hit = aten.multilabel_margin_loss_forward(x, target, reduction)
    return call(draw.real(*out.shape), x, target, reduction, hit)


def _alignment(draw: Draw, tensors: bool) -> tuple[Any, ...]:
    times, n, c = draw.size(1, 6), draw.size(1, 3), draw.size(2, 4)
    longest = draw.size(1, 3)
    inputs, lengths = [draw.size(1, times) for _ in range(n)], [draw.size(0, longest) for _ in range(n)]
    targets = draw.whole(c - 1, n, longest) + 1
    settings = (torch.tensor(inputs), torch.tensor(lengths)) if tensors else (inputs, lengths)
    return draw.real(times, n, c).contiguous().log_softmax(-1), targets, *settings, 0


@of("_ctc_loss.default", "_ctc_loss.Tensor")
def _(draw: Draw, key: str) -> Call:
    return call(*_alignment(draw, key.endswith("Tensor")), True)


@of("_ctc_loss_backward.default", "_ctc_loss_backward.Tensor")
def _(draw: Draw, key: str) -> Call:
    operands = _alignment(draw, key.endswith("Tensor"))
    loss, alpha = TABLE["_ctc_loss.default"](*operands, True)  # the kernel leaves parts of alpha as they were
    return call(draw.real(*loss.shape), *operands[:4], loss, alpha, 0, True)


# --- grids ----------------------------------------------------------------------------------------------------------


def _sampled(draw: Draw, d: int) -> tuple[Tensor, Tensor, int, int, bool]:
    """An image, points within and around it, none at or near the edge of a cell, and settings."""
    n, out = draw.size(1, 2), [draw.size(1, 3) for _ in range(d)]
    points = draw.whole(6, n, *out, d) - 3 + (draw.whole(96, n, *out, d) + 1).to(draw.dtype) / 97
    x = draw.real(n, draw.size(1, 3), *(draw.size() for _ in range(d)))
    return x, points, draw.size(0, 2 if d == 2 else 1), draw.size(0, 2), draw.flag()


@of("grid_sampler_2d.default", "grid_sampler_3d.default")
def _(draw: Draw, key: str) -> Call:
    return call(*_sampled(draw, 2 if "2d" in key else 3))


@of("grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default")
def _(draw: Draw, key: str) -> Call:
    x, points, *settings = _sampled(draw, 2 if "2d" in key else 3)
    return call(draw.real(*x.shape[:2], *points.shape[1:-1]), x, points, *settings, [draw.flag(), True])


@of("affine_grid_generator.default")
def _(draw: Draw) -> Call:
    n, d = draw.size(1, 2), draw.size(2, 3)
    return call(draw.real(n, d, d + 1), [n, 1, *(draw.size() for _ in range(d))], draw.flag())


# --- matrices -------------------------------------------------------------------------------------------------------


@of("linalg_solve_triangular.default")
def _(draw: Draw) -> Call:
    n, left = draw.size(), draw.flag()
    a = draw.matrix(n).flip(-2)
    b = draw.real(*a.shape[:-2], n, 2) if left else draw.real(*a.shape[:-2], 2, n)
    return call(a, b, upper=draw.flag(), left=left, unitriangular=draw.flag())


@of("linalg_cholesky_ex.default")
def _(draw: Draw) -> Call:
    a = draw.matrix(draw.size())
    return call(a @ a.mT + torch.eye(a.shape[-1]), upper=draw.flag())


@of("linalg_lu_factor_ex.default", "linalg_inv_ex.default", "_linalg_det.default", "_linalg_slogdet.default")
def _(draw: Draw) -> Call:
    return call(draw.matrix(draw.size()))


@of("linalg_lu_solve.default")
def _(draw: Draw) -> Call:
    n, left = draw.size(), draw.flag()
    lu, pivots, _ = torch.linalg.lu_factor_ex(draw.matrix(n))
    b = draw.real(*lu.shape[:-2], n, 2) if left else draw.real(*lu.shape[:-2], 2, n)
    return call(lu, pivots, b, left=left, adjoint=draw.flag())


@of("_linalg_solve_ex.default")
def _(draw: Draw) -> Call:
    a = draw.matrix(draw.size())
    return call(a, draw.real(*a.shape[:-1], *draw.of((), (3,))))


@of("linalg_qr.default")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.of((), (2,)), draw.size(), draw.size()), draw.of("reduced", "complete", "r"))


@of("geqrf.default")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.of((), (2,)), draw.size(), draw.size()))


@of("linalg_householder_product.default")
def _(draw: Draw) -> Call:
    n = draw.size()
    return call(*torch.geqrf(draw.real(*draw.of((), (2,)), n + draw.size(0, 3), n)))


@of("_linalg_check_errors.default")
def _(draw: Draw) -> Call:
    return call(torch.zeros(draw.shape(), dtype=torch.int32), "linalg.inv", is_matrix=False)


# --- optimizers and the gradient scaler -----------------------------------------------------------------------------


def _lists(draw: Draw, count: int, positive: tuple[int, ...] = ()) -> list[list[Tensor]]:
    shapes = [draw.shape(1) for _ in range(draw.size(1, 3))]
    return [
        [draw.positive(*s).contiguous() if k in positive else draw.real(*s).contiguous() for s in shapes]
        for k in range(count)
    ]


def _scaler(draw: Draw) -> dict[str, Tensor]:
    """What a gradient scaler hands to a fused optimizer, or nothing."""
    if draw.flag():
        return {}
    return {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(draw.of(0.0, 1.0))}


def _rate(key: str, draw: Draw) -> Any:
    return torch.tensor(0.1, dtype=torch.float32) if key.endswith("tensor_lr") else draw.of(0.1, 1e-3)


@of("_fused_adam_.default", "_fused_adam_.tensor_lr", "_fused_adamw_.default", "_fused_adamw_.tensor_lr")
def _(draw: Draw, key: str) -> Call:
    params, grads, m, v, most = _lists(draw, 5, (3, 4))
    amsgrad = draw.flag()
    steps = [torch.tensor(float(draw.size()))] * len(params)
    return call(
        params, grads, m, v, most if amsgrad else [], steps, lr=_rate(key, draw), beta1=0.9, beta2=0.95,
        weight_decay=draw.of(0.0, 0.1), eps=1e-6, amsgrad=amsgrad, maximize=draw.flag(), **_scaler(draw),
    )  # fmt: skip


@of("_fused_sgd_.default", "_fused_sgd_.tensor_lr")
def _(draw: Draw, key: str) -> Call:
    momentum = draw.of(0.0, 0.9)
    params, grads, buffers = _lists(draw, 3)
    return call(
        params, grads, buffers if momentum else [], weight_decay=draw.of(0.0, 0.1), momentum=momentum,
        lr=_rate(key, draw), dampening=draw.of(0.0, 0.5), nesterov=bool(momentum) and draw.flag(), maximize=draw.flag(),
        is_first_step=draw.flag(), **_scaler(draw),
    )  # fmt: skip


@of("_fused_adagrad_.default", "_fused_adagrad_.tensor_lr")
def _(draw: Draw, key: str) -> Call:
    params, grads, sums = _lists(draw, 3, (2,))
    steps = [torch.tensor(float(draw.size()))] * len(params)
    return call(
        params, grads, sums, steps, lr=_rate(key, draw), lr_decay=draw.of(0.0, 0.1), weight_decay=draw.of(0.0, 0.1),
        eps=1e-6, maximize=draw.flag(), **_scaler(draw),
    )  # fmt: skip


@of("_foreach_powsum.Scalar")
def _(draw: Draw) -> Call:
    return call(_lists(draw, 1)[0], draw.of(1, 2))


@of("_amp_foreach_non_finite_check_and_unscale_.default")
def _(draw: Draw) -> Call:
    grads = [g.to(torch.float32) for g in _lists(draw, 1)[0]]
    if draw.flag():
        grads[0].view(-1)[0] = draw.of(float("inf"), float("nan"))
    return call(grads, torch.tensor([draw.of(0.0, 1.0)]), torch.tensor([0.25]))


@of("_amp_update_scale_.default")
def _(draw: Draw) -> Call:
    scale, tracker = torch.tensor([draw.of(4.0, 3e38)]), torch.tensor([draw.size(0, 3)], dtype=torch.int32)
    return call(scale, tracker, torch.tensor([draw.of(0.0, 1.0)]), 2.0, 0.5, draw.size(1, 3))


# --- quantisation ---------------------------------------------------------------------------------------------------


@of("fake_quantize_per_tensor_affine_cachemask.default")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.shape()), draw.of(0.25, 0.0625), draw.of(0, 3), *draw.of((-8, 7), (0, 15)))


@of("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def _(draw: Draw) -> Call:
    scale, zero, enabled = torch.tensor([0.25]), torch.tensor([draw.of(0, 3)]), torch.tensor([draw.of(0, 1)])
    return call(draw.real(*draw.shape()), scale, zero, enabled, -8, 7)


@of("fake_quantize_per_channel_affine_cachemask.default")
def _(draw: Draw) -> Call:
    x = draw.real(*draw.shape(1, 3))
    axis = draw.of(*range(x.dim()))
    scale = 0.5 ** draw.whole(4, x.shape[axis]).float()
    return call(x, scale, draw.whole(3, x.shape[axis]).int(), axis, -8, 7)
