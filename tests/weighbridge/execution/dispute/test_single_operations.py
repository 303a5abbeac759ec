"""Chunks at borders, of results of all types: an honest party is right, a liar is wrong, and little is shown."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from support.narrowed import forged
from support.operator_examples import Example, Maker
from support.single_steps import SingleStep

from weighbridge.execution.dispute.asking import Traced
from weighbridge.execution.dispute.narrowing import Narrowed
from weighbridge.numerics.conformance.bound_policy import STRICT, named

aten = torch.ops.aten
make = Maker("plain")
bf16, f64, i64 = torch.bfloat16, torch.float64, torch.int64


def _embedded() -> Example:
    return Example(aten.embedding.default, (make(900, 5), make.index(900, 2, 101), -1))


def _normal() -> Example:
    return Example(aten.native_layer_norm.default, (make(2, 201, 3), [3], make(3), None, 1e-5))


def _gradients() -> Example:
    x, w, grad = make(2, 3, 9, 7), make(5, 3, 3, 3), make(2, 5, 9, 7)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])
    return Example(aten.convolution_backward.default, (grad, x, w, [5], *rest))


BORDERS: dict[str, Callable[[], Example]] = {
    "matrices": lambda: Example(aten.bmm.default, (make(2, 301, 40), make(2, 40, 3))),
    "transposed": lambda: Example(aten.bmm.default, (make(2, 40, 301).mT, make(2, 3, 40).mT)),
    "images": lambda: Example(
        aten.convolution.default,
        (make(2, 4, 9, 7), make(64, 4, 3, 3), make(64), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    ),
    "sentences": _embedded,
    "norms": _normal,
    "elements": lambda: Example(aten.mul.Tensor, (make(2, 901, 3), make(901, 1))),
    "sums": lambda: Example(aten.sum.dim_IntList, (make(2, 701, 3, 8), [3])),
    "planes": lambda: Example(aten.max_pool2d_with_indices.default, (make(2, 90, 6, 6), [2, 2])),
    "indices": lambda: Example(aten.index_select.default, (make(2, 800, 3), 1, make.index(800, 801))),
}
"""Results whose outermost border lies within a chunk of more than two rows."""

OTHERS: dict[str, Callable[[], Example]] = {
    "float64": lambda: Example(aten.mul.Tensor, (make(3, 301).to(f64), 0.75)),
    "integers": lambda: Example(aten.add.Tensor, (make.index(99, 3, 301), make.index(99, 301))),
    "booleans": lambda: Example(aten.gt.Tensor, (make(3, 1501), make(1501))),
    "one dimension": lambda: Example(aten.exp.default, (make(700),)),
    "expanded": lambda: Example(aten.add.Tensor, (make(1, 301).expand(4, 301), make(4, 1).expand(4, 301))),
    "in place": lambda: Example(aten.addmm_.default, (make(5, 301), make(5, 8), make(8, 301))),
    "a bias": lambda: Example(aten.addmm.default, (make(301), make(5, 8), make(8, 301)), {"alpha": 0.5}),
    "sorts": lambda: Example(aten.sort.stable, (make(3, 301).round(),), {"stable": True}),
    "columns": lambda: Example(aten.scatter_add.default, (make(3, 301), 1, make.index(301, 2, 400), make(2, 400))),
    "places": lambda: Example(aten.index_add.default, (make(9, 101), 0, make.index(9, 70), make(70, 101))),
    "gradients": _gradients,
    "twice the same": lambda: Example(aten.mul.Tensor, (x := make(3, 301), x)),
}


def straddling(which: Narrowed) -> list[int]:
    return [chunk for chunk in range(which.chunks) if len(which.pieces(chunk)) > 1]


def agreed(step: SingleStep) -> tuple[Narrowed, Traced]:
    which, told = step.narrowed(), step.told()
    assert which is not None
    assert (told.parted, len(told.leaves), len(told.parts)) == ("", 3, 32 * which.chunks)
    return which, told


def check(step: SingleStep, *chunks: int) -> None:
    """Judges chunks as an honest party and as a liar show them: some on a border and the last, if none are named."""
    which, told = agreed(step)
    for chunk in chunks or {*straddling(which)[:1], which.chunks - 1}:
        shown = step.told(chunk)
        said = step.judged(shown, chunk)
        assert (said.verdict, said.code) == ("admissible", "dispute.follows.part"), said.reason
        assert shown.opening is not None
        said = step.judged(shown, chunk, **forged(told, 1, chunk, shown, shown.opening))
        assert (said.verdict, said.code) == ("false", "dispute.leaf"), said.reason


@pytest.mark.parametrize("name", BORDERS)
def test_a_chunk_on_a_border_shows_as_much_as_any_other(name: str) -> None:
    step = SingleStep(BORDERS[name]())
    which, _ = agreed(step)
    border, (result, *_) = straddling(which), which.results
    half = result.numel // 2
    (chunk,) = [each for each in border if (at := result.elements(each))[0] < half < at[1]]
    assert result.elements(chunk)[1] - result.elements(chunk)[0] > 2 * result.ref[2][-1], "two rows at most"
    check(step, chunk)
    most = sum(sum(map(len, which.needed(each, _names(step, which, each), 0).values())) for each in (1, chunk + 1))
    assert sum(map(len, which.needed(chunk, _names(step, which, chunk), 0).values())) <= most + 2


def _names(step: SingleStep, which: Narrowed, chunk: int) -> dict[int, bytes] | None:
    if (found := which.named(chunk)) is None:
        return None
    data = bytes(step.memory[found[0]].numpy().data)
    return {at: data[1024 * at : 1024 * (at + 1)] for at in found[1]}


@pytest.mark.parametrize("name", OTHERS)
def test_honest_parties_are_right_and_liars_are_wrong(name: str) -> None:
    check(SingleStep(OTHERS[name]()))


@pytest.mark.parametrize("name", ["add_.Tensor", "clamp_.default", "sub_.Tensor"])
def test_a_column_of_one_row_is_changed_in_place(name: str) -> None:
    """Its stride is no 1, though it has one element only."""
    column, op = make(1, 5)[:, 2], getattr(getattr(aten, name.partition(".")[0]), name.partition(".")[2])
    step = SingleStep(Example(op, (column, -0.5 if "clamp" in name else column)))
    told = step.told()
    assert (told.parted, told.parts) == ("", b"")
    assert step.judged(told).verdict == "admissible"


@pytest.mark.parametrize("op", ["mm", "bmm", "convolution"])
def test_products_of_a_unit_are_judged_at_borders(op: str) -> None:
    x, y = make(2, 40, 12).to(bf16), make(2, 12, 700).to(bf16)
    operands = {
        "mm": (x[0], y[0]),
        "bmm": (make(3, 231, 12).to(bf16), make(3, 12, 3).to(bf16)),
        "convolution": (make(3, 4, 9, 7).to(bf16), make(30, 4, 3, 3).to(bf16), None, [1, 1], [1, 1], [1, 1], False,
                        [0, 0], 1),
    }  # fmt: skip
    check(SingleStep(Example(getattr(aten, op).default, operands[op]), named("unit-vdpbf16ps")))


@pytest.mark.finding("dispute.leaf")
def test_a_lie_beside_many_ties_takes_a_referee_no_long_time() -> None:
    """Every element lies half way between two numbers and is exact: nothing is logged, and nothing explains the lie."""
    odd = 1 + torch.arange(1, 601, 2) * 2.0**-12
    x = torch.stack([torch.full((4,), 1 + 2.0**-12), torch.zeros(4)], 1)
    step = SingleStep(Example(aten.mm.default, (x, torch.stack([odd, torch.zeros(300)]))), STRICT)
    assert step.record.logged == 0
    which, told = agreed(step)
    chunk = straddling(which)[0]
    shown = step.told(chunk)
    assert step.judged(shown, chunk).verdict == "admissible"
    began = time.perf_counter()
    said = step.judged(shown, chunk, **forged(told, 1, chunk, shown, shown.opening or b""))
    assert (said.verdict, said.code) == ("false", "dispute.leaf")
    assert time.perf_counter() - began < 60  # one by one they take over an hour
