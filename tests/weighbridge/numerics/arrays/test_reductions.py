"""Sums for bounds: the compiled ones against PyTorch's over the same operands widened."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.numerics.arrays import reductions

Tensor = torch.Tensor

layouts = st.tuples(
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.integers(0, 1 << 20),
)


def operand(shape: list[int], permuted: list[int], seed: int) -> Tensor:
    """A float32 tensor with zeros and numbers of all sizes, laid out in the order `permuted`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*[shape[d] for d in permuted], generator=generator)
    x = x * torch.exp2(torch.randint(-120, 100, x.shape, generator=generator).float())
    x[torch.rand(x.shape, generator=generator) < 0.1] = 0
    return x.permute([permuted.index(d) for d in range(len(shape))])


@pytest.mark.parametrize("compiled", [True, False])
@given(layout=layouts)
def test_norms_and_sums_are_those_of_the_wide_operand(compiled: bool, layout: tuple[list[int], object, int]) -> None:
    """Also where there is no compiled code, as on a GPU: then PyTorch reduces, in float64 too."""
    shape, random, seed = layout
    permuted = list(range(len(shape)))
    random.shuffle(permuted)  # type: ignore[attr-defined]
    dims = sorted(permuted[: 1 + seed % len(shape)])
    x = operand(shape, permuted, seed)
    wide = x.double()
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(reductions, "plan_of", lambda *operands: None)
        found, (total, least) = reductions.norm(x, dims), reductions.sizes(x, dims)
    torch.testing.assert_close(found, torch.linalg.vector_norm(wide, dim=dims, keepdim=True), rtol=1e-13, atol=0)
    torch.testing.assert_close(total, wide.abs().sum(dims, keepdim=True), rtol=1e-13, atol=0)
    some = torch.where(wide == 0, math.inf, wide.abs()).amin(dims, keepdim=True)
    assert torch.equal(least, some)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_sums_that_are_not(poison: float) -> None:
    x = torch.ones(5, 300)
    x[2, 17] = poison
    for sums in (reductions.norm(x, [1]), reductions.sizes(x, [1])[0]):
        assert torch.isfinite(sums).flatten().tolist() == [True, True, False, True, True]


@pytest.mark.parametrize("dim", [-1, 0, 1])
@given(seed=st.integers(0, 2**32 - 1), columns=st.integers(1, 70))
def test_products_are_those_of_the_wide_operands(dim: int, seed: int, columns: int) -> None:
    x, y = operand([2, 3, columns], [0, 1, 2], seed), operand([2, 3, columns], [0, 1, 2], seed + 1)
    wide = x.double()
    wanted = wide.abs().amax(dim, keepdim=True) + (wide * y.double()).abs().sum(dim, keepdim=True)
    torch.testing.assert_close(reductions.products(x, y, dim), wanted, rtol=1e-13, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_products_of_what_is_not_finite_are_not(dtype: torch.dtype, poison: float) -> None:
    x = torch.ones(4, 20, dtype=dtype)
    x[1, 3] = poison
    assert torch.isfinite(reductions.products(x, torch.zeros_like(x), -1)).flatten().tolist() == [
        True,
        False,
        True,
        True,
    ]
    y = torch.ones_like(x)
    y[2, 5] = poison
    assert torch.isfinite(reductions.products(torch.ones_like(x), y, -1)).flatten().tolist() == [
        True,
        True,
        False,
        True,
    ]


def test_norms_may_be_multiplied() -> None:
    x = operand([3, 5], [0, 1], 1)
    assert torch.equal(reductions.norm(x, [1], 0.25), reductions.norm(x, [1]) * 0.25)


@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_terms_are_those_of_the_wide_operands(weighted: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    g, x = (torch.randn(3, 4, 50, generator=generator) for _ in range(2))
    weight = torch.randn(50, generator=generator).double() if weighted else None
    mean, rstd = x.double().mean((0, 2)), torch.rand(4, generator=generator).double() + 0.5
    found = reductions.gradient_terms(g, x, weight, mean, rstd)
    wanted = reductions._torch_terms(g.double(), x.double(), weight, mean, rstd)
    for name in reductions.Terms.__slots__:
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=2.0**-22, atol=0, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_devices_make_float64_too(dtype: torch.dtype) -> None:
    """On the meta device, which computes nothing: types and shapes are as on the CPU."""
    results = []
    for device in ("cpu", "meta"):
        x = torch.ones(2, 3, 5, dtype=dtype, device=device)
        centre = torch.ones(3, dtype=torch.float32, device=device)
        terms = reductions.gradient_terms(x, x, torch.ones(5, device=device), centre, centre)
        made = [getattr(terms, name) for name in reductions.Terms.__slots__]
        made += [reductions.norm(x, [0, 2]), *reductions.sizes(x, [1])]
        assert {t.device.type for t in made} == {device}
        results.append([(t.shape, t.dtype) for t in made])
    assert results[0] == results[1]
    assert {kind for _, kind in results[0]} == {torch.float64}
