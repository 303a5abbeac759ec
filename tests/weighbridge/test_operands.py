"""Operands from a tape are checked before a kernel meets them: these crash, or read memory that is not theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from weighbridge.errors import TapeError
from weighbridge.numerics.evaluate import bind
from weighbridge.operands import check_sizes

aten = torch.ops.aten


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


MASK = [True, True, True]
x, c, r = (2, 5, 8), ones(5), ones(2, 1)

HONEST: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.native_batch_norm.default, (ones(*x), c, c, c, c, True, 0.1, 1e-5)),
    (aten.native_batch_norm.default, (ones(*x), None, None, None, None, True, 0.1, 1e-5)),
    (aten.native_batch_norm_backward.default, (ones(*x), ones(*x), c, c, c, c, c, True, 1e-5, MASK)),
    (aten.native_batch_norm_backward.default, (ones(*x), ones(*x), c, c, c, ones(0), ones(0), False, 1e-5, MASK)),
    (
        aten.native_layer_norm_backward.default,
        (ones(2, 5, 8), ones(2, 5, 8), [5, 8], r, r, ones(5, 8), ones(5, 8), MASK),
    ),
    (aten._softmax_backward_data.default, (ones(3, 4), ones(3, 4), 1, torch.float32)),
    (aten._log_softmax_backward_data.default, (ones(3, 4), ones(3, 4), 1, torch.float32)),
    (aten._adaptive_avg_pool2d_backward.default, (ones(2, 3, 1, 1), ones(2, 3, 4, 4))),
    (aten._adaptive_avg_pool3d_backward.default, (ones(2, 3, 1, 1, 1), ones(2, 3, 4, 4, 4))),
]

HOSTILE = [
    (aten.native_batch_norm.default, (ones(*x), ones(1), c, c, c, True, 0.1, 1e-5)),
    (aten.native_batch_norm.default, (ones(*x), c, c, ones(1), ones(1), False, 0.1, 1e-5)),
    (aten.native_batch_norm.default, (ones(5), c, c, c, c, True, 0.1, 1e-5)),
    (aten.native_batch_norm_backward.default, (ones(*x), ones(*x), ones(1), c, c, c, c, True, 1e-5, MASK)),
    (aten.native_batch_norm_backward.default, (ones(*x), ones(*x), c, c, c, ones(0), ones(0), True, 1e-5, MASK)),
    (aten.native_batch_norm_backward.default, (ones(1), ones(*x), c, c, c, c, c, True, 1e-5, MASK)),
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
