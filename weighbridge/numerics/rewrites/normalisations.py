"""Weight norms and group norms."""

from __future__ import annotations

from typing import cast

import torch

from weighbridge.numerics.rewrites.rewrite_table import decomposes

aten = torch.ops.aten
Tensor = torch.Tensor


def _norm_except(v: Tensor, dim: int) -> Tensor:
    others = [d for d in range(v.dim()) if d != dim % v.dim()]
    return cast(Tensor, aten.linalg_vector_norm.default(v, 2, others, True))


@decomposes("_weight_norm_interface.default")
def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    norm = _norm_except(v, dim)
    return v * (g / norm), norm


@decomposes("_weight_norm_interface_backward.default")
def _weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norm: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    others = [d for d in range(v.dim()) if d != dim % v.dim()]
    along = (grad * v).sum(others, keepdim=True) / norm
    return (grad - v * (along / norm)) * (g / norm), along


@decomposes("native_group_norm.default")
def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hxw: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    size = c // group * hxw
    out, mean, rstd = aten.native_layer_norm.default(x.contiguous().view(n * group, size), [size], None, None, eps)
    out = out.view(n, c, hxw)
    if weight is not None:
        out = out * weight.view(1, c, 1)
    if bias is not None:
        out = out + bias.view(1, c, 1)
    return out.view(x.shape), mean.view(n, group), rstd.view(n, group)


@decomposes("native_group_norm_backward.default")
def _group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, n: int, c: int, hxw: int, group: int,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    rows, size = n * group, c // group * hxw
    grad, x = grad.contiguous().view(n, c, hxw), x.contiguous()
    grad_x = grad_weight = grad_bias = None
    m, r = mean.view(rows, 1), rstd.view(rows, 1)
    if output_mask[0]:
        scaled = grad if weight is None else grad * weight.view(1, c, 1)
        grad_x = aten.native_layer_norm_backward.default(
            scaled.view(rows, size), x.view(rows, size), [size], m, r, None, None, [True, False, False]
        )[0].view(x.shape)
    if output_mask[1]:
        normal = ((x.view(rows, size) - m) * r).view(n, c, hxw)
        grad_weight = (grad * normal).sum((0, 2))
    if output_mask[2]:
        grad_bias = grad.sum((0, 2))
    return grad_x, grad_weight, grad_bias
