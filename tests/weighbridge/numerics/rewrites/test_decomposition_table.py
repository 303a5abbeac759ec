"""Every decomposition against PyTorch's own operation, over random shapes and settings.

In float64 wherever the kernel takes it, so that a wrong formula cannot hide behind rounding. The law: for operands that
the kernel takes, a decomposition returns tensors of the same shapes, types and contiguity, with the same values up to
the rounding of another order of operations; it changes the operands that the kernel changes, and shares no memory with
an operand where the kernel does not.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import test_decompositions
import test_margin_losses
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_calls import CALLS, Draw
from support.releases import lacking
from torch import Tensor

from weighbridge.numerics.rewrites import decompositions  # noqa: F401 (fills the table)
from weighbridge.numerics.rewrites.rewrite_table import TABLE

ELSEWHERE = {
    "_thnn_fused_lstm_cell.default": test_decompositions.test_fused_cells,
    "_thnn_fused_lstm_cell_backward_impl.default": test_decompositions.test_fused_cells,
    "_thnn_fused_gru_cell.default": test_decompositions.test_fused_cells,
    "_thnn_fused_gru_cell_backward.default": test_decompositions.test_fused_cells,
    "cauchy_.default": test_decompositions.test_variates_have_their_distribution,
    "exponential_.default": test_decompositions.test_variates_have_their_distribution,
    "log_normal_.default": test_decompositions.test_variates_have_their_distribution,
    "geometric_.default": test_decompositions.test_geometric_variates_count_from_one,
    "multinomial.default": test_decompositions.test_categories_come_as_often_as_they_weigh,
    "rrelu_with_noise.default": test_decompositions.test_noisy_slopes_are_kept_for_the_backward_pass,
    "rrelu_with_noise_backward.default": test_decompositions.test_noisy_slopes_are_kept_for_the_backward_pass,
    "_fused_dropout.default": test_margin_losses.test_a_fused_dropout_keeps_what_its_mask_says,
}
"""What has no kernel on a CPU, or draws: by the test that compares it with something else."""

HERE = {"native_dropout.default", "rrelu_with_noise_.default"}


def test_every_decomposition_has_an_example() -> None:
    """Of PyTorch's own operations: whoever decomposes those of another namespace (`fsdp::`) tests them there."""
    own = {key for key in TABLE if "::" not in key}
    assert own | lacking() == set(CALLS) | set(ELSEWHERE) | HERE | lacking()


def _rms_norm_backward(
    grad: Tensor, x: Tensor, shape: list[int], rstd: Tensor, weight: Tensor, mask: list[bool]
) -> tuple[Tensor, ...]:
    """By automatic differentiation: PyTorch has no kernel for it on a CPU."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    return torch.autograd.grad(torch.nn.functional.rms_norm(x, shape, weight, 1e-3), (x, weight), grad)


def _alignment_backward(grad: Tensor, *args: Any) -> Tensor:
    """With the kernel's own notes from the forward pass."""
    operands, (blank, zero_infinity) = args[:4], args[-2:]
    notes = torch.ops.aten._ctc_loss(*operands, blank, zero_infinity)
    result: Tensor = torch.ops.aten._ctc_loss_backward(grad, *operands, *notes, blank, zero_infinity)
    return result


def overload(key: str) -> Any:
    if key == "_fused_rms_norm_backward.default":
        return _rms_norm_backward
    if key.startswith("_ctc_loss_backward"):
        return _alignment_backward
    name, _, which = key.partition(".")
    return getattr(getattr(torch.ops.aten, name), which)


def flat(value: Any) -> list[Any]:
    return [v for each in value for v in flat(each)] if isinstance(value, (list, tuple)) else [value]


def memory(value: Any) -> set[int]:
    return {v.untyped_storage().data_ptr() for v in flat(value) if isinstance(v, Tensor) and v.numel()}


LOOSE = {torch.float64: (1e-9, 1e-9), torch.float32: (1e-5, 1e-5), torch.bfloat16: (2e-2, 2e-2)}
UNSPECIFIED = {
    "_embedding_bag.default": 1, "_embedding_bag_forward_only.default": 1, "_ctc_loss.default": 1,
    "_ctc_loss.Tensor": 1, "log_sigmoid_forward.default": 1, "native_layer_norm.default": 1,
}  # fmt: skip
"""Of these so many results count; the others are notes for the backward pass, in whatever form it takes them."""


def agree(found: Any, wanted: Any, strict: bool = True) -> None:
    if not isinstance(wanted, Tensor):
        assert found == wanted
        return
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    if strict and wanted.is_contiguous():
        assert found.is_contiguous()
    rtol, atol = LOOSE.get(wanted.dtype, (0, 0))
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("key", sorted(set(CALLS) - lacking()))
def test_a_decomposition_does_what_the_kernel_does(key: str) -> None:
    op = overload(key)

    @settings(max_examples=15, derandomize=True, database=None, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        call = CALLS[key](Draw(data))
        args, kwargs = copy.deepcopy(call.args), copy.deepcopy(call.kwargs)
        found = TABLE[key](*args, **kwargs)
        assert found is not NotImplemented
        before = memory([call.args, list(call.kwargs.values())])
        wanted = op(*call.args, **call.kwargs)
        count = UNSPECIFIED.get(key, len(flat(wanted)))
        for mine, kernels in list(zip(flat(found), flat(wanted), strict=key not in UNSPECIFIED))[:count]:
            agree(mine, kernels, strict="backward" not in key)  # which autograd alone receives
            if isinstance(kernels, Tensor) and not memory(kernels) & before:
                assert not memory(mine) & memory([args, list(kwargs.values())])
        for mine, kernels in zip(flat([args, kwargs.values()]), flat([call.args, call.kwargs.values()]), strict=True):
            if isinstance(kernels, Tensor):
                agree(mine, kernels, strict=False)

    check()


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_scales_what_its_mask_keeps(p: float) -> None:
    x = torch.arange(1.0, 4001)
    out, mask = TABLE["native_dropout.default"](x, p, True)
    torch.testing.assert_close(out, torch.where(mask, x / max(1 - p, 0.1), 0.0))
    assert abs(float(mask.float().mean()) - (1 - p)) < 0.05
    same, everything = TABLE["native_dropout.default"](x, p, False)
    assert torch.equal(same, x)
    assert bool(everything.all())


def test_a_noisy_slope_in_place_is_the_one_that_is_not() -> None:
    x, noise = torch.linspace(-2, 2, 101), torch.zeros(101)
    torch.manual_seed(3)
    wanted = TABLE["rrelu_with_noise.default"](x, noise.clone(), 0.1, 0.3, True)
    torch.manual_seed(3)
    changed = x.clone()
    assert TABLE["rrelu_with_noise_.default"](changed, noise, 0.1, 0.3, True) is changed
    assert torch.equal(changed, wanted)


def test_gradients_of_bags_scale_by_how_often_a_row_is_used() -> None:
    """PyTorch's kernel divides by the counts of other rows, so it is compared with the sum by hand."""
    indices, bags, offsets = torch.tensor([1, 0, 1, 0, 0, 2]), torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 3])
    weight, grad = torch.randn(4, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    sizes, largest = torch.ops.aten._embedding_bag(weight, indices, offsets)[2:]
    found = TABLE["_embedding_bag_dense_backward.default"](grad, indices, bags, sizes, largest, 4, True, 0, None, -1)
    used = torch.bincount(indices, minlength=4)
    wanted = torch.zeros_like(weight).index_add(0, indices, grad[bags] / used[indices, None])
    torch.testing.assert_close(found, wanted)
