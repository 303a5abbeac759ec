"""Errors of kernels beside their bounds: operations under a listening context, sums in another order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.operator_examples import Example, Maker

from weighbridge.numerics import bounds
from weighbridge.numerics.context import Context
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.random.variates import Draw
from weighbridge.numerics.rounding import contested
from weighbridge.numerics.rounding.bound import Bound, dense_bound
from weighbridge.numerics.rule_table import FAMILIES

aten = torch.ops.aten

Tensor = torch.Tensor


class Listening(Context):
    """A context that keeps every wide result with its bound, and rounds plainly."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Bound]] = []

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        self.seen.append((wide.clone(memory_format=torch.preserve_format), bound))
        return contested.round_plain(wide)[0]

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        raise AssertionError("a rounded operation is not exact")

    def draw(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        raise AssertionError("a rounded operation draws nothing")

    def host(self, value: bool | int | float) -> bool | int | float:
        raise AssertionError("a rounded operation hands out nothing")


def copied(value: Any) -> Any:
    """Operands that an in-place operation may change."""
    if isinstance(value, Tensor):
        return value.clone(memory_format=torch.preserve_format)
    return [copied(v) for v in value] if isinstance(value, list) else value


def listen(example: Example) -> tuple[list[tuple[Tensor, Bound]], list[Tensor]]:
    """Returns the wide results with their bounds, and the float results of the operation as it is evaluated here."""
    context = Listening()
    with torch.backends.mkldnn.flags(enabled=False):
        out = evaluate(example.op, [copied(a) for a in example.args], copied(example.kwargs), context)
    returned = out if isinstance(out, (tuple, list)) else [out]
    return context.seen, [t for t in returned if isinstance(t, Tensor) and t.is_floating_point()]


def error_bound(wide: Tensor, bound: Bound) -> Tensor:
    """The bound of every element, in the logical shape of `wide`."""
    e = dense_bound(wide, bound)
    return e.as_strided(wide.shape, wide.stride())


EXACT_SQUARES = {"tanh_backward.default"}
"""Rest on squares of float32 values, which float64 holds and float32 does not; see the test against long doubles."""


@contextmanager
def single_precision() -> Iterator[None]:
    """Within it, bounds are those of float32 arithmetic; none is zero because a sum is exact in float64."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (bounds, *FAMILIES):
            for name, coarser in (("U", 2.0**-24), ("unless_exact", lambda total, least: total)):
                if hasattr(module, name):
                    patch.setattr(module, name, coarser)
        yield


def reductions(make: Maker, order: Tensor) -> list[tuple[Example, Example]]:
    """(a call, the same call with what it sums in another order), along dimensions of `len(order)` elements."""
    n = len(order)
    a, b, c, x, g = make(6, n), make(n, 5), make(6, 5), make(6, n), make(n, 6)
    batch, rows, images, filters = make(3, 6, n), make(n, 6), make(2, n, 4, 4), make(3, n, 3, 3)
    mean, rstd, index = make(n, 1), make.positive(n, 1), make.index(4, n)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    def p(t: Tensor, dim: int = 0) -> Tensor:
        return t.index_select(dim, order)

    calls: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = [
        (aten.mm.default, (a, b), (p(a, 1), p(b))),
        (aten.addmm.default, (c, a, b), (c, p(a, 1), p(b))),
        (aten.bmm.default, (batch, batch.mT.contiguous()), (p(batch, 2), p(batch, 2).mT.contiguous())),
        (aten.dot.default, (a[0], b[:, 0].clone()), (p(a[0]), p(b[:, 0]))),
        (aten.mv.default, (a, b[:, 0].clone()), (p(a, 1), p(b[:, 0]))),
        (aten.sum.dim_IntList, (x, [1]), (p(x, 1), [1])),
        (aten.sum.dim_IntList, (g, [0]), (p(g), [0])),
        (aten.linalg_vector_norm.default, (x, 2, [1]), (p(x, 1), 2, [1])),
        (aten.var.correction, (x, [1]), (p(x, 1), [1])),
        (aten.logsumexp.default, (x, [1]), (p(x, 1), [1])),
        (aten.convolution.default, (images, filters, None, *rest), (p(images, 1), p(filters, 1), None, *rest)),
        (aten.index_add.default, (c, 1, index, x), (c, 1, p(index), p(x, 1))),
        (aten.embedding_dense_backward.default, (g, index, 4, -1, False), (p(g), p(index), 4, -1, False)),
        (
            aten.native_layer_norm_backward.default,
            (g, rows, [6], mean, rstd, a[:, 0], a[:, 0], [False, True, True]),
            (p(g), p(rows), [6], p(mean), p(rstd), a[:, 0], a[:, 0], [False, True, True]),
        ),
    ]
    return [(Example(op, first), Example(op, second)) for op, first, second in calls]
