"""Means, and normalisations of 16-bit operands, in float32 steps.

A mean is a sum, which is often exact, and one division, which always has one right answer. Layer norms of bfloat16 and
float16 are those of the same values in float32 (hence computed in float64), rounded to 16 bits at the end: computed in
float32 like a matrix product, half of their gradient's elements would be contested.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from weighbridge.numerics.rewrites.rewrite_table import decomposes
from weighbridge.numerics.rounding.formats import NARROW

aten = torch.ops.aten
Tensor = torch.Tensor


def single(x: Tensor) -> Tensor:
    """Returns a 16-bit tensor in float32, and what is not one as it is."""
    return x.to(torch.float32) if x.dtype in NARROW else x


def _perhaps(x: Tensor | None) -> Tensor | None:
    return None if x is None else single(x)


@decomposes("mean.default")
def _mean(x: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return _mean_over(x, None, False, dtype=dtype)


@decomposes("mean.dim")
def _mean_over(x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    kind = dtype or x.dtype
    wide = single(x if dtype is None or x.dtype in NARROW else x.to(dtype))
    if wide.dtype != torch.float32:
        return NotImplemented
    dims = list(range(x.dim())) if dim is None or (isinstance(dim, (list, tuple)) and not dim) else dim
    dims = [dims] if isinstance(dims, int) else list(dims)
    total = aten.sum.dim_IntList(wide, dims, keepdim) if x.dim() else wide
    return (total / math.prod(x.shape[d] for d in dims if x.dim())).to(kind)


@decomposes("native_layer_norm.default", unless=lambda x, *_, **__: x.dtype not in NARROW)
def _layer_norm(x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    out, mean, rstd = aten.native_layer_norm.default(single(x), shape, _perhaps(weight), _perhaps(bias), eps)
    return out.to(x.dtype), mean, rstd


@decomposes("native_layer_norm_backward.default", unless=lambda grad, x, *_, **__: x.dtype not in NARROW)
def _layer_norm_backward(
    grad: Tensor, x: Tensor, shape: list[int], mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None,
    output_mask: list[bool],
) -> Any:  # fmt: skip
    kinds = [x.dtype, *(x.dtype if t is None else t.dtype for t in (weight, bias))]
    grads = aten.native_layer_norm_backward.default(
        single(grad), single(x), shape, single(mean), single(rstd), _perhaps(weight), _perhaps(bias), output_mask
    )
    return tuple(None if g is None else g.to(kind) for g, kind in zip(grads, kinds, strict=True))
