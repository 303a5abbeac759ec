"""Sums into places that an index names."""

from __future__ import annotations

import math

import torch

from weighbridge.numerics.arrays import reductions
from weighbridge.numerics.bounds import Call, Line, U, apply, gamma, unless_exact
from weighbridge.numerics.families.sources import SUMS
from weighbridge.numerics.rounding.bound import Bound

aten = torch.ops.aten
Tensor = torch.Tensor


def accumulate(call: Call) -> list[Bound]:
    """index_add, index_put with accumulation, scatter_add: gamma(n) * (|self| + sum|source|), n additions at most."""
    args = {k: v.abs() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in call.args.items()}
    source = next(args[name] for name in ("source", "src", "values") if name in args)
    if "alpha" in args:
        args["alpha"] = abs(args["alpha"])
    n = source.numel()
    indices = [i for i in args.get("indices", ()) if i is not None]
    if indices:  # the source is broadcast to what the indices select
        whole = [i.shape for i in indices if i.dtype not in (torch.bool, torch.uint8)]
        n = max(n, math.prod(torch.broadcast_shapes(*whole)), *(i.numel() for i in indices))  # type: ignore[no-untyped-call]
    spread = apply(call, args)
    return [Bound(factors=(spread * gamma(n + 4),))]


def embedding_rows(call: Call) -> list[Bound]:
    """embedding_dense_backward, of the rows that are used: gamma(uses of the row) * sum|g| over its uses."""
    g, index, rows = call["grad_output"], call["indices"], call["num_weights"]
    sums = aten.embedding_dense_backward(g.abs(), index, rows, call["padding_idx"], call["scale_grad_by_freq"])
    if not call["scale_grad_by_freq"] and g.numel():
        sums = unless_exact(sums, reductions.sizes(call.narrow("grad_output"), list(range(g.dim() - 1)))[1].view(-1))
    uses = torch.bincount(index.reshape(-1), minlength=rows)[:rows].to(g.dtype) + 4
    return [Bound(factors=(sums, (uses * (2 * U)).unsqueeze(-1)))]


LINES = (
    Line(
        "index_add.default index_put.default scatter_add.default",
        accumulate,
        SUMS,
        "gamma(n + 4) * (|self| + sum|source|)",
    ),
    Line(
        "embedding_dense_backward.default",
        embedding_rows,
        SUMS,
        "gamma(uses of the row) * sum|gradient| over its uses; 0 where the sum is exact in float64 in any order",
    ),
)
