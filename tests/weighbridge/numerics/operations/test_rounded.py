"""What rounded operations compute before they round."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.bound_errors import listen
from support.operator_examples import Example

aten = torch.ops.aten
Tensor = torch.Tensor


def between(count: int, size: int) -> Tensor:
    """Rows with means that often lie halfway between two float32 numbers."""
    return torch.randn(count, size, generator=torch.Generator().manual_seed(size)) * 0.02


def wide_means(x: Tensor, how: str) -> Tensor:
    """The means of rows, before they are rounded."""
    size = x.shape[1]
    ones = torch.ones(size)
    examples = {
        "layer_norm": Example(aten.native_layer_norm.default, (x, [size], ones, ones, 1e-5)),
        "var_mean": Example(aten.var_mean.correction, (x, [1]), {"correction": 0, "keepdim": True}),
        "std_mean": Example(aten.std_mean.correction, (x, [1]), {"correction": 0}),
    }
    seen, _ = listen(examples[how])
    return seen[1][0].reshape(-1).clone()


@pytest.mark.parametrize("size", [32, 48, 256])
@pytest.mark.parametrize("how", ["layer_norm", "var_mean", "std_mean"])
def test_means_do_not_depend_on_the_order_of_sums(how: str, size: int) -> None:
    """Otherwise devices have those that lie halfway on either side, and an honest log overrules many of them."""
    x = between(512, size)
    exact = x.numpy().astype(np.longdouble).sum(1).astype(np.float64) / size
    assert np.array_equal(wide_means(x, how).numpy(), exact)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(1))
    assert torch.equal(wide_means(x[:, order].contiguous(), how), wide_means(x, how))


def test_means_that_lie_halfway_are_many() -> None:
    """What the test above is about happens: with Welford's algorithm, these were rounded by chance."""
    means = between(512, 32).double().mean(1).numpy()
    down = np.nextafter(means.astype(np.float32), np.float32(-1)).astype(np.float64)
    up = np.nextafter(means.astype(np.float32), np.float32(1)).astype(np.float64)
    nearest = means.astype(np.float32).astype(np.float64)
    halfway = (np.abs(means - nearest) == np.abs(means - up)) | (np.abs(means - nearest) == np.abs(means - down))
    assert halfway.sum() > 10
