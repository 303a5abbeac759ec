"""Sums and norms from one trip over the operand: against exact ones, and with the bound that they have anyway."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.numerics.arrays import reductions
from weighbridge.numerics.bounds import Call
from weighbridge.numerics.families.sums import norm, summation
from weighbridge.numerics.operations import sums
from weighbridge.numerics.schemas import bind

Tensor = torch.Tensor
SUM = torch.ops.aten.sum.dim_IntList
NORM = torch.ops.aten.linalg_vector_norm.default

layouts = st.tuples(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.integers(0, 1 << 20),
    st.booleans(),
)


def operand(shape: list[int], permuted: list[int], seed: int) -> Tensor:
    """A float32 tensor with zeros and numbers of many sizes, laid out in the order `permuted`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*[shape[d] for d in permuted], generator=generator)
    x = x * torch.exp2(torch.randint(-30, 30, x.shape, generator=generator).float())
    x[torch.rand(x.shape, generator=generator) < 0.1] = 0
    return x.permute([permuted.index(d) for d in range(len(shape))])


def exact(x: Tensor, dims: list[int]) -> Tensor:
    """Sums rounded once (`math.fsum`)."""
    moved = x.double().permute([*[d for d in range(x.dim()) if d not in dims], *dims])
    kept = moved.shape[: x.dim() - len(dims)]
    total = [math.fsum(row) for row in moved.reshape(math.prod(kept), -1).tolist()]
    return torch.tensor(total, dtype=torch.float64).view(kept)


@given(layout=layouts)
def test_sums_are_within_their_bound_of_the_exact_one(layout: tuple[list[int], Any, int, bool]) -> None:
    shape, random, seed, keep = layout
    permuted = list(range(len(shape)))
    random.shuffle(permuted)
    dims = sorted(permuted[: 1 + seed % len(shape)])
    x = operand(shape, permuted, seed)
    made = sums.evaluate(SUM, bind(SUM, (x, dims, keep), {}))
    if made is None:  # three nested loops do not walk this layout: PyTorch sums it
        assert reductions.plan_of(x, dims) is None
        return
    found, bound = made
    assert found.shape == x.sum(dims, keepdim=keep).shape
    wide = {"self": x.double(), "dim": dims, "keepdim": keep}
    (usual,) = summation(Call("sum", wide, [found], {"self": x}))
    limit, other = (b.factors[0].expand(found.shape) for b in (bound, usual))
    torch.testing.assert_close(limit, other, rtol=1e-6, atol=0)
    error = (found - exact(x, dims).view(found.shape)).abs()
    assert bool((error <= limit).all())


@given(layout=layouts)
def test_norms_are_within_their_bound_of_the_exact_one(layout: tuple[list[int], Any, int, bool]) -> None:
    shape, random, seed, keep = layout
    permuted = list(range(len(shape)))
    random.shuffle(permuted)
    dims = sorted(permuted[: 1 + seed % len(shape)])
    x = operand(shape, permuted, seed)
    made = sums.evaluate(NORM, bind(NORM, (x, 2, dims, keep), {}))
    if made is None:  # summed over an outer dimension: PyTorch does it
        plan = reductions.plan_of(x, dims)
        assert plan is None or plan[2][2] == 1
        return
    found, bound = made
    assert found.shape == torch.linalg.vector_norm(x, 2, dims, keep).shape
    assert bound == norm(Call("linalg_vector_norm", {"self": x.double(), "dim": dims}, [found]))[0]
    truth = exact(x.double().square(), dims).sqrt().view(found.shape)  # squares of float32 are exact in float64
    assert bool(((found - truth).abs() <= truth * bound.rel).all())


def test_errors_of_long_norms_stay_few_units() -> None:
    x = torch.rand(1 << 20, generator=torch.Generator().manual_seed(1))
    for dim in (None, [0], []):
        made = sums.evaluate(NORM, bind(NORM, (x, 2.0, dim), {}))
        assert made is not None
        truth = math.sqrt(math.fsum(x.double().square().tolist()))
        assert abs(float(made[0]) - truth) <= 4 * 2.0**-53 * truth


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_norms_of_what_is_not_finite_are_as_in_pytorch(poison: float) -> None:
    x = torch.ones(5, 300)
    x[2, 17] = poison
    made = sums.evaluate(NORM, bind(NORM, (x, 2, [1]), {}))
    assert made is not None
    np.testing.assert_allclose(made[0].numpy(), x.double().norm(dim=1).numpy(), rtol=1e-15)


@pytest.mark.parametrize("shape", [(1, 1 << 20), (1 << 14, 64)])
def test_errors_of_long_sums_stay_few_units(shape: tuple[int, int]) -> None:
    """Calibrated bounds rest on it: they were measured with PyTorch's cascades."""
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    dims = [1] if shape[0] == 1 else [0]
    made = sums.evaluate(SUM, bind(SUM, (x, dims, False), {}))
    assert made is not None
    truth = exact(x, dims)
    assert float(((made[0] - truth).abs() / truth).max()) <= 4 * 2.0**-53


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dims", [[0], [1]])
def test_what_is_not_finite_is_as_in_pytorch(poison: float, dims: list[int]) -> None:
    x = torch.ones(300, 5) if dims == [0] else torch.ones(5, 300)
    x[(17, 2) if dims == [0] else (2, 17)] = poison
    made = sums.evaluate(SUM, bind(SUM, (x, dims, False), {}))
    assert made is not None
    np.testing.assert_array_equal(made[0].numpy(), x.double().sum(dims).numpy())


def test_opposite_infinities_have_no_sum() -> None:
    made = sums.evaluate(SUM, bind(SUM, (torch.tensor([[math.inf, -math.inf, 1.0]]), [1], False), {}))
    assert made is not None
    assert torch.isnan(made[0]).all()


def test_other_calls_are_left_alone() -> None:
    x = torch.ones(3, 4)
    assert sums.evaluate(SUM, bind(SUM, (x.double(), [1], False), {})) is None
    assert sums.evaluate(SUM, bind(SUM, (x, [1], False), {"dtype": torch.float64})) is None
    assert sums.evaluate(torch.ops.aten.amax.default, {"self": x, "dim": [1]}) is None
    assert sums.evaluate(NORM, bind(NORM, (x, 1, [1]), {})) is None
    assert sums.evaluate(NORM, bind(NORM, (x.double(), 2, [1]), {})) is None
