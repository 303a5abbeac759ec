"""The logarithm of the gamma function and its derivative: bounds next to zeros and far away, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from support.bound_errors import error_bound, listen
from support.operator_examples import Example

from weighbridge.core.errors import RefusedOperationError

aten = torch.ops.aten
Tensor = torch.Tensor

EXACT: dict[str, Callable[[Any], Any]] = {"lgamma": mpmath.loggamma, "digamma": mpmath.digamma}


def neighbours(value: float, count: int = 20) -> Tensor:
    """The floats around a value."""
    bits = torch.tensor(value).view(torch.int32) + torch.arange(-count, count + 1, dtype=torch.int32)
    return bits.view(torch.float32)


@pytest.mark.parametrize("name", sorted(EXACT))
def test_the_kernel_is_within_its_bound_wherever_it_has_one(name: str) -> None:
    """At every size, next to the zeros, and where the recurrence ends (10) and kernels change their formula."""
    size = torch.logspace(-44, 36, 400)
    near = [neighbours(v) for v in (0.5, 1.0, 1.4616321, 1.5, 2.0, 2.5, 3.0, 4.0, 8.0, 9.0, 10.0, 11.0, 1e6, 1e17)]
    x = torch.cat([size, *near, torch.linspace(0.05, 12, 400)])
    ((wide, bound),), _ = listen(Example(getattr(aten, name).default, (x,)))
    e = error_bound(wide, bound)
    with mpmath.workdps(60):
        for v, y, most in zip(x.tolist(), wide.tolist(), e.tolist(), strict=True):
            assert abs(mpmath.mpf(y) - EXACT[name](mpmath.mpf(v))) <= most, v


@pytest.mark.parametrize(("name", "bad"), [("lgamma", [-0.5]), ("digamma", [-0.5, 0.0, -0.0])])
@pytest.mark.parametrize("form", ["{}", "{}_"])
def test_what_is_not_positive_is_refused_with_the_way_out(name: str, bad: list[float], form: str) -> None:
    op = getattr(aten, form.format(name)).default
    for value in bad:
        x = torch.tensor([1.0, value, math.nan])
        with pytest.raises(RefusedOperationError, match=f"aten.{name}.default .* clamp the operand"):
            listen(Example(op, (x,)))
    with pytest.raises(RefusedOperationError, match="softplus"):
        listen(Example(getattr(aten, name).default, (torch.tensor([3, -2]),)))


def test_ends_and_nan_pass() -> None:
    ends = torch.tensor([math.nan, math.inf])
    for name in EXACT:
        _, (found,) = listen(Example(getattr(aten, name).default, (ends,)))
        assert found.isnan().tolist() == [True, False]
        assert found[1] == math.inf
    _, (found,) = listen(Example(aten.lgamma.default, (torch.tensor([0.0, -0.0, 1.0, 2.0]),)))
    assert found.tolist() == [math.inf, math.inf, 0.0, 0.0]


def test_integers_are_widened_too() -> None:
    _, (found,) = listen(Example(aten.lgamma.default, (torch.arange(1, 9),)))
    assert found.tolist() == torch.arange(1, 9).double().lgamma().float().tolist()
