"""Examples of `weighbridge.numerics.families.sums`."""

from __future__ import annotations

import numpy as np
from support.operator_examples.example import REFERENCES, Calls, Example, LongDoubles, Maker, Op, Tensor, aten, long, of


@of("sum.default", "nansum.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 80),))
    yield Example(op, (make(1),))


@of("sum.dim_IntList")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 60, 3), [1]))
    yield Example(op, (make(5, 60, 3), [0, -1], True))
    yield Example(op, (make(50, 6).t(), [-1]))
    yield Example(op, (make(5, 6), []))


@of("cumsum.default", "cumprod.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 40) / (1 if op is aten.cumsum.default else 8), 1))


@of("prod.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(3, 5) / 8,))


@of("prod.dim_int")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(3, 20) / 8, 1))


@of("linalg_vector_norm.default")
def _(make: Maker, op: Op) -> Calls:
    for order in (2, 1, 3.5, 0.5):
        yield Example(op, (make(6, 70), order))
        yield Example(op, (make(6, 70), order, [0], True))


@of("norm.Scalar")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(6, 70), 2))


@of("norm.ScalarOpt_dim")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(6, 70), 2, [1], True))
    yield Example(op, (make(6, 70), None, [0]))


def _sum(x: Tensor, dim: list[int] | None = None, keep: bool = False) -> list[LongDoubles]:
    return [np.asarray(long(x).sum(axis=tuple(dim) if dim else None, keepdims=keep))]


REFERENCES.update(
    {
        "sum.default": _sum,
        "sum.dim_IntList": _sum,
    }
)
