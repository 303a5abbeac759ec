"""Examples of `weighbridge.numerics.families.resampling`."""

from __future__ import annotations

from support.operator_examples.example import Calls, Example, Maker, Op, of


@of("reflection_pad1d_backward.default", "replication_pad1d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 12), make(2, 3, 7), [3, 2]))


@of("reflection_pad2d_backward.default", "replication_pad2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 9, 8), make(2, 3, 6, 5), [2, 1, 1, 2]))


@of("reflection_pad3d_backward.default", "replication_pad3d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 5, 6, 7), make(2, 3, 3, 4, 5), [1, 1, 0, 2, 1, 1]))


@of("upsample_nearest1d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 20), [20], [2, 3, 5]))


@of("upsample_nearest2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 10, 12), [10, 12], [2, 3, 5, 4]))


@of("_upsample_nearest_exact1d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 20), [20], [2, 3, 5]))


@of("_upsample_nearest_exact2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 10, 12), [10, 12], [2, 3, 5, 4]))


@of("upsample_nearest3d_backward.default", "_upsample_nearest_exact3d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 4, 6, 5), [4, 6, 5], [2, 3, 2, 3, 4]))


@of("upsample_trilinear3d.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 3, 4, 5), [7, 9, 4], False))
    yield Example(op, (make(2, 3, 3, 4, 5), [7, 9, 11], True))


@of("upsample_trilinear3d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 7, 9, 4), [7, 9, 4], [2, 3, 3, 4, 5], False))


@of("upsample_bicubic2d.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 5, 4), [11, 13], False))
    yield Example(op, (make(2, 3, 5, 40), [5, 93], True))


@of("upsample_bicubic2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 11, 13), [11, 13], [2, 3, 5, 4], False))


@of("upsample_bilinear2d.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 5, 4), [11, 13], False))
    yield Example(op, (make(2, 3, 5, 40), [5, 80], True))


@of("upsample_bilinear2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(2, 3, 11, 13), [11, 13], [2, 3, 5, 4], False))
