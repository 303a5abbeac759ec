"""What lies between the backward pass and the optimizer: one factor and one bound, or nothing that is known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.execution.recognition.between import Between, Pair, solve
from weighbridge.execution.recognition.derivation import UnderivableError


def pairs(factor: float, bound: float, seed: int, parameters: int = 3) -> list[Pair]:
    """Gradients of normal numbers, some of them beyond any bound up to one, and what float32 makes of them."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(parameters):
        left = torch.randn(4, 5, generator=generator)
        read = (left * factor).clamp(-bound, bound)
        found.append(Pair(f"p{number}", left.double(), read.double(), torch.float32))
    return found


@given(st.sampled_from([1.0, 0.5, 0.37, 1 / 1024, 3.0]), st.sampled_from([math.inf, 1.0, 0.2]), st.integers(0, 99))
def test_a_factor_and_a_bound_are_found(factor: float, bound: float, seed: int) -> None:
    given_ = pairs(factor, bound, seed)
    found = solve(given_)
    within = any(bool((each.read.abs() < bound * (1 - 1e-6)).any()) for each in given_)
    assert found.factor == (pytest.approx(factor, rel=1e-6) if within else found.factor)
    reached = any(float(each.read.abs().max()) >= bound * (1 - 1e-6) for each in given_)
    assert found.bound == (pytest.approx(bound) if reached else math.inf)
    assert found.numbers == (found.factor != 1.0) + reached
    assert all(torch.allclose(found.of(each.left), each.read, rtol=1e-6) for each in given_)


def test_nothing_is_nothing() -> None:
    assert solve(pairs(1.0, math.inf, 0)) == Between() == solve([])
    assert Between().numbers == 0


@pytest.mark.parametrize("change", [1e-5, 1.0])
def test_one_other_element_is_one_too_many(change: float) -> None:
    changed = pairs(1.0, 0.5, 1)
    changed[1].read[0, 0] += change
    with pytest.raises(UnderivableError, match="one factor and one bound for all"):
        solve(changed)
