"""Variances that are carried through products, and the derivative of products, against definitions."""

from __future__ import annotations

import pytest
import torch

from weighbridge.execution.recognition.noise import alike, product_variance
from weighbridge.execution.recognition.products import gradients

Tensor = torch.Tensor


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


OPERANDS = {
    "mm.default": [(5, 4), (4, 3)],
    "bmm.default": [(2, 5, 4), (2, 4, 3)],
    "addmm.default": [(3,), (5, 4), (4, 3)],
    "baddbmm.default": [(2, 1, 3), (2, 5, 4), (2, 4, 3)],
}


def called(name: str, operands: list[Tensor]) -> Tensor:
    base, _, overload = name.partition(".")
    made: Tensor = getattr(getattr(torch.ops.aten, base), overload)(*operands)
    return made


@pytest.mark.parametrize("name", OPERANDS)
def test_the_derivative_of_a_product_is_pytorchs(name: str) -> None:
    operands = [drawn(*shape, seed=n).requires_grad_() for n, shape in enumerate(OPERANDS[name])]
    result = called(name, operands)
    gradient = drawn(*result.shape, seed=9)
    expected = torch.autograd.grad(result, operands, gradient)
    with torch.no_grad():
        found = gradients(name, operands, {}, gradient, range(len(operands)))
    assert found is not None
    for own, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(own, theirs)


def test_what_is_no_plain_product_is_left_to_pytorch() -> None:
    a, b = drawn(2, 2), drawn(2, 2)
    assert gradients("add.Tensor", [a, b], {}, a, [0]) is None
    assert gradients("addmm.default", [a, a, b], {"alpha": 2.0}, a, [0]) is None


@pytest.mark.parametrize("name", OPERANDS)
def test_variances_of_products_are_sums_of_squares(name: str) -> None:
    """The derivative is linear in the gradient, so its variance is by the squares of its coefficients."""
    operands = [drawn(*shape, seed=n).requires_grad_() for n, shape in enumerate(OPERANDS[name])]
    result = called(name, operands)
    errors = drawn(*result.shape, seed=5).abs() * 1e-20
    assumed = torch.maximum(errors, alike(errors))  # one sample may be small by chance
    for number, operand in enumerate(operands):
        expected = torch.zeros_like(operand)
        for at in range(result.numel()):
            one = torch.zeros_like(result).flatten()
            one[at] = assumed.flatten()[at]
            (coefficient,) = torch.autograd.grad(result, operand, one.view_as(result), retain_graph=True)
            expected += coefficient.square()
        found = product_variance(name, [each.detach() for each in operands], {}, errors, number)
        assert found is not None
        torch.testing.assert_close(found.double().sqrt(), expected.sqrt(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("number", [1, 2])
def test_variances_of_convolutions_are_sums_of_squares(number: int) -> None:
    operands = [drawn(2, 4, 6, 5).requires_grad_(), drawn(6, 2, 3, 2).requires_grad_(), drawn(6).requires_grad_()]
    settings = [[2, 1], [1, 0], [1, 1], False, [0, 0], 2]
    result = torch.ops.aten.convolution.default(*operands, *settings)
    errors = drawn(*result.shape, seed=5).abs()
    assumed = torch.maximum(errors, alike(errors))
    expected = torch.zeros_like(operands[number])
    for at in range(result.numel()):
        one = torch.zeros_like(result).flatten()
        one[at] = assumed.flatten()[at]
        (coefficient,) = torch.autograd.grad(result, operands[number], one.view_as(result), retain_graph=True)
        expected += coefficient.square()
    arguments = [*(each.detach() for each in operands), *settings]
    found = product_variance("convolution.default", arguments, {}, errors, number)
    assert found is not None
    torch.testing.assert_close(found.double().sqrt(), expected.sqrt(), rtol=1e-4, atol=0)


def test_a_row_that_brings_little_and_one_that_brings_much() -> None:
    """A coordinate that only a quiet row reaches is not held to be as uncertain as one that a loud row reaches."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    errors = torch.tensor([[1e-3] * 8, [1.0] * 8], dtype=torch.float64)
    found = product_variance("mm.default", [x, drawn(2, 8)], {}, errors, 1)
    assert found is not None
    quiet, loud = found.double().sqrt()
    assert float(quiet.max()) < 1e-2
    assert float(loud.min()) > 0.5


@pytest.mark.parametrize("worst", [0.0, float("inf"), float("nan")])
def test_samples_that_say_nothing(worst: float) -> None:
    errors = torch.full((5, 3), worst, dtype=torch.float64)
    assert product_variance("mm.default", [drawn(5, 4), drawn(4, 3)], {}, errors, 1) is None
