"""Elements of matrix products looked at term by term."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prover.capture.generators import Generators
from prover.capture.recording_context import Recording
from weighbridge.numerics.arrays import physical
from weighbridge.numerics.arrays.product_elements import Products
from weighbridge.numerics.conformance.bound_policy import calibrated
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.rounding import contested, narrow
from weighbridge.numerics.rounding.bound import Bound

Tensor = torch.Tensor
aten = torch.ops.aten

bfloats = st.builds(
    lambda m, e, s: s * m * 2.0**e, st.integers(0, 255), st.integers(-20, 8), st.sampled_from([-1.0, 1.0])
)


@given(st.lists(st.tuples(bfloats, bfloats), min_size=1, max_size=5), st.sampled_from([24, 53]))
def test_a_sum_that_is_called_exact_is_so_in_every_order(pairs: list[tuple[float, float]], width: int) -> None:
    a = torch.tensor([[p[0] for p in pairs]]).bfloat16().double()
    b = torch.tensor([[p[1]] for p in pairs]).bfloat16().double()
    products = Products(a, b, 1.0)
    place = [torch.tensor([0]), torch.tensor([0])]
    terms = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[0], b[:, 0], strict=True)]
    assert float(products.sizes(place)[0]) == pytest.approx(float(sum(map(abs, terms))))
    if not bool(products.exact(place, width)[0]):
        return
    real = np.float32 if width == 24 else np.float64
    for order in itertools.permutations(terms):
        total = real(0)
        for term in order:
            total = real(total + real(float(term)))
        assert Fraction(float(total)) == sum(terms)


def test_some_sums_are_called_exact_and_some_are_not() -> None:
    a, b = torch.tensor([[0.5, 0.5], [1.0, 2.0**-30]]), torch.tensor([[3.0, 0.0], [5.0, 1.0]])
    found = Products(a, b, 1.0).exact([torch.tensor([0, 1]), torch.tensor([0, 0])], 24)
    assert found.tolist() == [True, False]
    tiny = torch.full((1, 2), 2.0**-70)
    assert not Products(tiny, tiny.T, 1.0).exact([torch.tensor([0]), torch.tensor([0])], 24)[0]


def entries(a: Tensor, b: Tensor) -> int:
    """How many elements of a product are logged."""
    context = Recording(1, Generators(), calibrated())
    context.begin(0)
    before = context.rounded_elements
    evaluate((aten.bmm if a.dim() == 3 else aten.mm).default, (a, b), {}, context)
    assert context.rounded_elements > before
    return context.log.entries


def test_structural_zeros_are_no_entries() -> None:
    """Rows and columns that share no element other than zero: lower triangle times upper half of the rows."""
    a = torch.rand(3, 32, 32).triu(16) + 0.5 * torch.eye(32)
    b = torch.cat([torch.rand(3, 16, 8), torch.zeros(3, 16, 8)], 1)
    x = a.double() @ b.double()
    assert int((x == 0).sum()) == 3 * 16 * 8
    wide = Bound(factors=(torch.full((1, 1, 1), 1e-16, dtype=torch.float64),) * 2)
    sharp = Bound(factors=wide.factors, products=Products(a, b, 2.0**-50))
    without, found = (contested.record(x, bound, 0, 0).entries for bound in (wide, sharp))
    assert without is not None
    assert len(without.positions) >= 3 * 16 * 8
    assert found is None or not (physical.flat(x)[torch.from_numpy(found.positions)] == 0).any()


def test_a_replayer_takes_what_the_recorder_logged_near_zero() -> None:
    """Cancelling sums: the recorder's sharp bound is the narrower one, and the replayer finds the same value."""
    generator = torch.Generator().manual_seed(4)
    a = torch.randn(20, 40, generator=generator)
    b = torch.cat([a[:, :20].mT, -a[:, :20].mT], 0)  # the diagonal nearly cancels
    a = torch.cat([a[:, :20], a[:, :20] * (1 + 2.0**-20)], 1)
    x = a.double() @ b.double()
    norms = a.double().norm(dim=1, keepdim=True), b.double().norm(dim=0, keepdim=True)
    bound = Bound(factors=(norms[0] * 2.0**-26, norms[1]), products=Products(a, b, 2.0**-28))
    recorded = contested.record(x, bound, 0, 0)
    assert recorded.entries is not None
    for seed in range(20):
        noise = torch.Generator().manual_seed(seed)
        sharp = (a.abs().double() @ b.abs().double()) * 2.0**-28
        y = x + (torch.rand(x.shape, generator=noise, dtype=torch.float64) * 2 - 1) * sharp
        followed = contested.follow(y, bound, recorded.entries)
        assert not followed.inadmissible
        at = torch.from_numpy(recorded.entries.positions)
        assert torch.equal(physical.flat(followed.out)[at], physical.flat(recorded.out)[at])


def test_ties_of_16_bit_sums_are_no_entries() -> None:
    """Means of two bfloat16 values lie half way between two others every other time, on every device."""
    a = torch.full((1, 64, 2), 0.5).bfloat16()
    b = torch.randn(1, 2, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    x = (a.double() @ b.double()).float()
    ties = (x.view(torch.int32) & 0xFFFF) == 0x8000
    assert int(ties.sum()) > 64
    assert entries(a, b) == 0
    loose = Bound(rel=2.0**-20)
    assert narrow.record(x, loose, torch.bfloat16, 0, 0).entries is not None
    assert math.isfinite(float(x.sum()))
