"""Examples of `weighbridge.numerics.families.scatters`."""

from __future__ import annotations

from support.operator_examples.example import Calls, Example, Maker, Op, of


@of("index_add.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(4, 5), 0, make.index(4, 30), make(30, 5)), {"alpha": -0.7})


@of("index_put.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(4, 5), [make.index(4, 60), make.index(5, 60)], make(60), True))
    yield Example(op, (make(4, 5), [make.index(4, 60)], make(5), True))


@of("scatter_add.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(4, 5), 0, make.index(4, 30, 5), make(30, 5)))


@of("embedding_dense_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(6, 9, 5), make.index(4, 6, 9), 4, -1, False))
    yield Example(op, (make(6, 9, 5), make.index(4, 6, 9), 4, 2, True))
