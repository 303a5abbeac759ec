"""Examples of `weighbridge.numerics.families.products`."""

from __future__ import annotations

from support.operator_examples.example import REFERENCES, Calls, Example, Maker, Op, long, of


@of("mm.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(7, 33), make(33, 9)))
    yield Example(op, (make(70, 9).t(), make(80, 70).t()[:, :40]))
    yield Example(op, (make(3, 1), make(1, 5)))
    yield Example(op, (make(3, 0), make(0, 5)))


@of("bmm.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(3, 7, 21), make(3, 21, 6)))


@of("mv.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(7, 50), make(50)))


@of("dot.default", "vdot.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(300), make(300)))


@of("addmm.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(9), make(7, 33), make(33, 9)))
    yield Example(op, (make(7, 9), make(7, 33), make(33, 9)), {"beta": 0.3, "alpha": -1.7})


@of("baddbmm.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(3, 7, 6), make(3, 7, 21), make(3, 21, 6)), {"beta": 0.5, "alpha": 0.125})


@of("addmv.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(7), make(7, 50), make(50)), {"beta": 2, "alpha": 0.7})


REFERENCES.update(
    {
        "mm.default": lambda a, b: [(long(a)[:, :, None] * long(b)[None]).sum(axis=1)],
        "bmm.default": lambda a, b: [(long(a)[:, :, :, None] * long(b)[:, None]).sum(axis=2)],
    }
)
