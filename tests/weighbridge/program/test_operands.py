"""Operands from a tape are checked before a kernel meets them: these crash, or read memory that is not theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from weighbridge.core.errors import TapeError
from weighbridge.numerics.rule_table import find
from weighbridge.numerics.schemas import bind
from weighbridge.program.operands import check_shapes, check_sizes, resolve, tensor, unfit
from weighbridge.transcript.tape import Node

aten = torch.ops.aten


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


MASK = [True, True, True]
x, c, r = (2, 5, 8), ones(5), ones(2, 1)

POOLED = (ones(2, 3, 3, 3, 3),)
WINDOWS = ([3, 3, 3], [1, 1, 1], [0, 0, 0], [1, 1, 1], False)
PLACES = torch.zeros(2, 3, 3, 3, 3, dtype=torch.int64)
CONVOLVED = ([3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, MASK)

HONEST: list[tuple[Any, tuple[Any, ...]]] = [
    (
        aten.native_layer_norm_backward.default,
        (ones(2, 5, 8), ones(2, 5, 8), [5, 8], r, r, ones(5, 8), ones(5, 8), MASK),
    ),
    (aten._softmax_backward_data.default, (ones(3, 4), ones(3, 4), 1, torch.float32)),
    (aten._log_softmax_backward_data.default, (ones(3, 4), ones(3, 4), 1, torch.float32)),
    (aten._adaptive_avg_pool2d_backward.default, (ones(2, 3, 1, 1), ones(2, 3, 4, 4))),
    (aten._adaptive_avg_pool3d_backward.default, (ones(2, 3, 1, 1, 1), ones(2, 3, 4, 4, 4))),
    (aten._adaptive_avg_pool2d_backward.default, (ones(0, 3, 1, 1), ones(0, 3, 4, 4))),
    (aten.max_pool3d_with_indices_backward.default, (*POOLED, ones(2, 3, 5, 5, 5), *WINDOWS, PLACES)),
    (aten.convolution_backward.default, (ones(2, 3, 4, 4), ones(2, 2, 6, 6), ones(3, 2, 3, 3), *CONVOLVED)),
    (aten.reflection_pad2d_backward.default, (ones(2, 6, 6), ones(2, 4, 4), [1, 1, 1, 1])),
]

HOSTILE = [
    (
        aten.native_layer_norm_backward.default,
        (ones(1), ones(2, 5, 8), [5, 8], r, r, ones(5, 8), ones(5, 8), MASK),
    ),
    (
        aten.native_layer_norm_backward.default,
        (ones(2, 5, 8), ones(2, 5, 8), [5, 8], ones(1), ones(1), ones(5, 8), None, MASK),
    ),
    (
        aten.native_layer_norm_backward.default,
        (ones(2, 5, 8), ones(2, 5, 8), [5, 8], r, r, ones(1), None, MASK),
    ),
    (aten._softmax_backward_data.default, (ones(3, 4), ones(1, 1), 1, torch.float32)),
    (aten._log_softmax_backward_data.default, (ones(300, 400), ones(1, 1), 1, torch.float32)),
    (aten._adaptive_avg_pool2d_backward.default, (ones(9, 99, 9, 9), ones(2, 3, 4, 4))),
    (aten._adaptive_avg_pool3d_backward.default, (ones(9, 99, 9, 9, 9), ones(2, 3, 4, 4, 4))),
    (aten._adaptive_avg_pool2d_backward.default, (ones(2, 3, 3, 2), ones(2, 3, 0, 5))),
    (aten.max_pool3d_with_indices_backward.default, (*POOLED, ones(0, 3, 5, 5, 5), *WINDOWS, PLACES)),
    (aten.max_pool3d_with_indices_backward.default, (*POOLED, ones(2, 3, 5, 5, 5), *WINDOWS, PLACES[:1])),
    (aten.convolution_backward.default, (ones(0, 3, 4, 4), ones(2, 2, 6, 6), ones(3, 2, 3, 3), *CONVOLVED)),
    (aten.convolution_backward.default, (ones(2, 3, 9, 9), ones(2, 2, 6, 6), ones(3, 2, 3, 3), *CONVOLVED)),
    (aten.reflection_pad2d_backward.default, (ones(5, 6, 6), ones(2, 4, 4), [1, 1, 1, 1])),
]


@pytest.mark.parametrize("case", range(len(HONEST)))
def test_operands_as_autograd_gives_them_pass(case: int) -> None:
    op, args = HONEST[case]
    check_sizes(op, bind(op, args, {}))
    op(*args)  # and the kernel takes them


@pytest.mark.parametrize("case", range(len(HOSTILE)))
def test_operands_that_would_crash_a_kernel_are_refused(case: int) -> None:
    op, args = HOSTILE[case]
    with pytest.raises(TapeError) as caught:
        check_sizes(op, bind(op, args, {}))
    assert caught.value.reason == "tape.out_of_bounds"


@pytest.mark.parametrize("name", ["mul.left_t", "index_put.hacked_twin", "add.moon", "_no_such.default"])
def test_overloads_that_pytorch_only_lists_are_forbidden(name: str) -> None:
    with pytest.raises(TapeError) as caught:
        resolve(name)
    assert caught.value.reason == "tape.forbidden"


def _node(name: str) -> Node:
    return Node(name, (), {}, (0,))


LARGE: list[tuple[str, list[Any], tuple[int, ...]]] = [
    ("eye.m", [3, 1 << 40], (3,)),
    ("zeros.default", [[1 << 40]], (3,)),
    ("linspace.default", [0.0, 1.0, 1 << 40], (3,)),
    ("rand.default", [[1 << 40]], (3,)),
    ("randperm.default", [1 << 40], (3,)),
    ("normal.Tensor_float", [torch.zeros(4), 1.0], (3,)),
    ("bincount.default", [torch.tensor([1, 2]), None, 1 << 40], (3,)),
    ("repeat_interleave.Tensor", [torch.tensor([1 << 23, 1 << 23])], (3,)),
]


@pytest.mark.parametrize(("name", "args", "said"), LARGE, ids=[case[0] for case in LARGE])
def test_what_would_be_larger_than_the_tape_says_is_not_made(name: str, args: list[Any], said: tuple[int, ...]) -> None:
    op = resolve(name)
    with pytest.raises(TapeError, match="the tape says"):
        check_shapes(op, args, {}, _node(name), [(0, "f32", said, (1,), 0)], find(op, bind(op, args, {})).kind)


def test_what_is_as_large_as_the_tape_says_passes() -> None:
    for name, args in (("eye.m", [3, 2]), ("rand.default", [[3, 2]]), ("zeros.default", [[3, 2]])):
        op = resolve(name)
        check_shapes(op, args, {}, _node(name), [(0, "f32", (3, 2), (2, 1), 0)], find(op, bind(op, args, {})).kind)


def test_a_machine_that_is_too_small_accuses_nobody() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert unfit("empty.memory_format", caught.value).reason == "tape.too_large"
    assert unfit("empty.memory_format", MemoryError()).reason == "tape.too_large"
    assert unfit("mm.default", AssertionError()).reason == "tape.malformed"


def test_nothing_of_a_size_that_overflows_is_no_tensor() -> None:
    """It needs no memory, so it lies inside every storage."""
    with pytest.raises(TapeError) as caught:
        tensor(torch.zeros(4, dtype=torch.uint8), (0, "f32", (1 << 61, 8, 0), (1, 1, 1), 0))
    assert caught.value.reason == "tape.malformed"
