"""Examples of `weighbridge.numerics.families.pooling`."""

from __future__ import annotations

from support.operator_examples.example import Calls, Example, Maker, Op, aten, of


@of("avg_pool2d.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 9, 8), [3, 2], [2, 2], [1, 1], True, False))
    yield Example(op, (make(2, 3, 9, 8), [3], [2], [1], False, True))


@of("avg_pool2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 4, 4), make(2, 3, 9, 9), [3, 3], [2, 2], [0, 0], False, True, None))


@of("avg_pool3d.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 4, 4, 4), [2, 2, 2], [2, 2, 2]))


@of("avg_pool3d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 2, 2, 2), make(2, 3, 4, 4, 4), [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None))


@of("_adaptive_avg_pool2d.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 7, 5), [3, 2]))


@of("_adaptive_avg_pool2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 3, 2), make(2, 3, 7, 5)))


@of("_adaptive_avg_pool3d.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 7, 5, 4), [3, 2, 2]))


@of("_adaptive_avg_pool3d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 3, 2, 2), make(2, 3, 7, 5, 4)))


@of("max_pool2d_with_indices_backward.default")
def _(make: Maker, op: Op) -> Calls:
    x = make(2, 3, 9, 9)
    out, index = aten.max_pool2d_with_indices.default(x, [3, 3], [1, 1], [1, 1])
    yield Example(op, (make(*out.shape), x, [3, 3], [1, 1], [1, 1], [1, 1], False, index))


@of("max_pool3d_with_indices_backward.default")
def _(make: Maker, op: Op) -> Calls:
    x = make(2, 3, 5, 5, 5)
    out, index = aten.max_pool3d_with_indices.default(x, [3, 3, 3], [1, 1, 1])
    yield Example(op, (make(*out.shape), x, [3] * 3, [1] * 3, [0] * 3, [1] * 3, False, index))
