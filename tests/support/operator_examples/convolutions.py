"""Examples of `weighbridge.numerics.families.convolutions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from support.operator_examples.example import Calls, Example, Maker, Op, Tensor, aten, of

CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], bool, int, int, int, bool, int]] = [
    ((2, 4, 9), (6, 4, 3), True, 1, 0, 1, False, 1),
    ((3, 4, 8, 7), (6, 4, 3, 3), True, 1, 1, 1, False, 1),
    ((2, 6, 9, 9), (4, 3, 3, 3), False, 2, 2, 2, False, 2),
    ((2, 4, 6, 6), (4, 1, 3, 3), True, 1, 1, 1, False, 4),
    ((2, 4, 5, 5), (4, 3, 3, 3), True, 2, 1, 1, True, 1),
    ((2, 4, 5, 5), (4, 3, 3, 3), False, 2, 1, 1, True, 2),
    ((2, 2, 4, 4, 4), (3, 2, 2, 2, 2), True, 1, 0, 1, False, 1),
]
"""(input, weight, bias, stride, padding, dilation, transposed, groups)"""


def convolutions(make: Maker) -> Iterator[tuple[Tensor, Tensor, Tensor | None, tuple[Any, ...]]]:
    for x, w, bias, stride, padding, dilation, transposed, groups in CONVOLUTIONS:
        n = len(x) - 2
        channels = w[1] * groups if transposed else w[0]
        rest = ([stride] * n, [padding] * n, [dilation] * n, transposed, [stride - 1 if transposed else 0] * n, groups)
        yield make(*x), make(*w), make(channels) if bias else None, rest


@of("convolution.default")
def _(make: Maker, op: Op) -> Calls:
    for x, w, bias, rest in convolutions(make):
        yield Example(op, (x, w, bias, *rest))
    yield Example(op, (make(2, 4, 8, 7), make(6, 4, 3, 2), None, [1], [0], [1], False, [0], 1))


@of("convolution_backward.default")
def _(make: Maker, op: Op) -> Calls:
    for x, w, bias, rest in convolutions(make):
        out = aten.convolution.default(x, w, bias, *rest)
        sizes = None if bias is None else [out.shape[1]]
        yield Example(op, (make(*out.shape), x, w, sizes, *rest, [True, True, bias is not None]))
    one_number = ([2], [1], [2], False, [0], 1, [True, True, False])
    yield Example(op, (make(2, 6, 3, 4), make(2, 4, 7, 8), make(6, 4, 3, 2), None, *one_number))
