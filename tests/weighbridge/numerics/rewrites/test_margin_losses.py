"""Margin losses and choices compute what PyTorch's own kernels compute, up to rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from prover.capture.generators import Generators
from prover.capture.recording_context import Recording
from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.rewrites import decompositions

aten = torch.ops.aten
Tensor = torch.Tensor


def real(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


ROWS, CLASS = real(4, 5), torch.tensor([1, 0, 4, 2])
LABELS = torch.tensor([[3, 0, -1, 2, -1], [-1, 1, 1, 1, 1], [0, 1, 2, 3, 4], [2, -1, -1, -1, -1]])
HIT = aten.multilabel_margin_loss_forward.default(ROWS, LABELS, 1)[1]
CUBES = real(2, 3, 5, 6, 7)
MASK = real(3, 4, seed=3) > 0

CALLS: list[tuple[str, tuple[Any, ...]]] = [
    *(
        ("multi_margin_loss.default", (ROWS, CLASS, p, margin, weight, reduction))
        for p, margin, weight, reduction in [(1, 1, None, 0), (2, 0.5, real(5).abs(), 1), (1, 2, real(5).abs(), 2)]
    ),
    ("multi_margin_loss.default", (ROWS[0], CLASS[0])),
    *(
        ("multi_margin_loss_backward.default", (grad, ROWS, CLASS, p, margin, weight, reduction))
        for grad, p, margin, weight, reduction in [
            (real(4), 1, 1, None, 0),
            (real(), 2, 0.5, real(5).abs(), 1),
            (real(), 1, 2, real(5).abs(), 2),
        ]
    ),
    ("multi_margin_loss_backward.default", (real(), ROWS[0], CLASS[0], 1, 1)),
    *(
        ("multilabel_margin_loss_backward.default", (grad, ROWS, LABELS, reduction, HIT))
        for grad, reduction in [(real(4), 0), (real(), 1), (real(), 2)]
    ),
    ("unfold_backward.default", (real(3, 4, 2), [3, 9], 1, 2, 2)),
    ("unfold_backward.default", (real(4, 3, 5), [8, 3], 0, 5, 1)),
    ("masked_scatter_backward.default", (real(3, 4), MASK, [3, 3])),
    ("masked_scatter_backward.default", (real(3, 4), MASK, [5, 4])),
    (
        "adaptive_max_pool3d_backward.default",
        (real(2, 3, 2, 3, 4), CUBES, F.adaptive_max_pool3d(CUBES, (2, 3, 4), return_indices=True)[1]),
    ),
    ("scatter.value_reduce", (ROWS, 1, torch.tensor([[1, 1, 0]]), 0.75)),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_decomposition_is_the_operation(number: int) -> None:
    key, args = CALLS[number]
    name, _, overload = key.partition(".")
    op = getattr(getattr(aten, name), overload)
    options = {"reduce": "add"} if "reduce" in overload else {}
    replace = decompositions.find(op)
    assert replace is not None
    found, wanted = replace(*args, **options), op(*args, **options)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_scatter_with_products_is_refused() -> None:
    replace = decompositions.find(aten.scatter.reduce)
    assert replace is not None
    with pytest.raises(RefusedOperationError, match="logarithms"):
        replace(ROWS, 1, torch.tensor([[0]]), ROWS, reduce="multiply")


def test_scatter_with_sums_adds() -> None:
    index, src = torch.tensor([[1, 1, 0], [2, 2, 2]]), real(2, 3, seed=5)
    replace = decompositions.find(aten.scatter.reduce)
    assert replace is not None
    torch.testing.assert_close(replace(ROWS, 1, index, src, reduce="add"), ROWS.scatter_add(1, index, src))


def test_a_fused_dropout_keeps_what_its_mask_says() -> None:
    replace = decompositions.find(aten._fused_dropout.default)
    assert replace is not None
    x = real(64, 64)
    out, mask = replace(x, 0.75)
    assert mask.dtype == torch.uint8
    torch.testing.assert_close(out, x * mask / 0.75)
    assert 0.7 < float(mask.float().mean()) < 0.8


@pytest.mark.parametrize("beta", [0.0, -0.0, 1.0])
@pytest.mark.parametrize("name", ["smooth_l1_loss_backward", "huber_loss_backward"])
def test_gradients_of_integers_are_refused(name: str, beta: float) -> None:
    """A kernel that divides them by zero ends the process; a fuzzed tape did that."""
    ones = torch.ones(3, dtype=torch.int64)
    op = getattr(aten, name).default
    with pytest.raises(RefusedOperationError, match="no gradient"):
        evaluate(op, (ones, ones, ones, 1, beta), {}, Recording(0, Generators()))
