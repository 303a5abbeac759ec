"""Names for what a few ruled operations do together: running maxima, renormalised rows, systems from a factor."""

from __future__ import annotations

from typing import Any, cast

import torch

from weighbridge.numerics.rewriting import TABLE, Decomposition, decomposes

aten = torch.ops.aten
Tensor = torch.Tensor


def _running(x: Tensor, dim: int, larger: bool) -> tuple[Tensor, Tensor]:
    """In log2(n) rounds each place takes the better of itself and the place 2^k before it; of equals the later."""
    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    n = x.shape[dim]
    places = torch.arange(n, device=x.device).view([n if d == dim % x.dim() else 1 for d in range(x.dim())])
    values, indices = x.clone(memory_format=torch.contiguous_format), places.expand(x.shape).contiguous()

    def earlier(t: Tensor, by: int) -> Tensor:
        return torch.cat([t.narrow(dim, 0, by), t.narrow(dim, 0, n - by)], dim)

    by = 1
    while by < n:
        before, at = earlier(values, by), earlier(indices, by)
        taken = before > values if larger else before < values
        if x.is_floating_point():
            taken = taken | (torch.isnan(before) & ~torch.isnan(values))
        values, indices = torch.where(taken, before, values), torch.where(taken, at, indices)
        by *= 2
    return values, indices


@decomposes("cummax.default")
def _cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _running(x, dim, larger=True)


@decomposes("cummin.default")
def _cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _running(x, dim, larger=False)


@decomposes("embedding_renorm_.default")
def _embedding_renorm_(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Scales the rows that are looked up and longer than `max_norm`."""
    used = torch.zeros(len(weight), dtype=torch.bool, device=weight.device).index_fill(0, indices.reshape(-1), True)
    norm = torch.linalg.vector_norm(weight, norm_type, dim=1, keepdim=True)
    scaled = weight * (max_norm / (norm + 1e-7))
    return weight.copy_(torch.where((norm > max_norm) & used[:, None], scaled, weight))


@decomposes("index_reduce.default")
def _index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    places = index.view([-1 if d == dim % x.dim() else 1 for d in range(x.dim())]).expand(source.shape)
    return aten.scatter_reduce.two(x, dim, places, source, reduce, include_self=include_self)


@decomposes("cholesky_solve.default")
def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    first, second = (factor.mT, factor) if upper else (factor, factor.mT)
    half = torch.linalg.solve_triangular(first, b, upper=False)
    return cast(Tensor, torch.linalg.solve_triangular(second, half, upper=True))


@decomposes("channel_shuffle.default")
def _channel_shuffle(x: Tensor, groups: int) -> Tensor:
    parts = x.reshape(x.shape[0], groups, x.shape[1] // groups, -1).transpose(1, 2)
    return parts.clone(memory_format=torch.contiguous_format).view(x.shape)


@decomposes("logspace.default")
def _logspace(start: Any, end: Any, steps: int, base: float = 10.0, **options: Any) -> Any:
    return aten.pow.Scalar(base, torch.linspace(start, end, steps, **options))


_FROM_TORCH = """
addr.default deg2rad.default max_unpool2d.default max_unpool3d.default rad2deg.default renorm.default
rot90.default special_entr.default
"""


def _torchs(name: str) -> Decomposition:
    packet, _, overload = name.partition(".")
    function: Decomposition = torch._decomp.decomposition_table[getattr(getattr(aten, packet), overload)]
    return function


TABLE.update({name: _torchs(name) for name in _FROM_TORCH.split()})
