"""Convolutions as a matrix unit has them: right in every form, and in the order that is prescribed."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.special_values import Alone

from weighbridge.numerics.conformance import bound_policy
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.operations import prescribed_convolutions
from weighbridge.numerics.schemas import bind
from weighbridge.numerics.units import fused_products

aten = torch.ops.aten
Tensor = torch.Tensor
PRODUCT = fused_products.product
SIZES, FILTER = (9, 8, 7), (3, 2, 3)
SETTINGS = ((1, 0, 1, 0), (2, 1, 1, 1), (3, 2, 2, 0), (1, 3, 1, 0))
"""Stride, padding, dilation, and what a transposed convolution appends."""


class Unit(Alone):
    policy = bound_policy.named("unit-vdpbf16ps")


def bf16(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def cases(dimensions: int) -> Iterator[tuple[Any, ...]]:
    """Operands of convolutions in so many dimensions."""
    for groups, transposed, (stride, padding, dilation, extra) in itertools.product((1, 2), (False, True), SETTINGS):
        shape = (4, 6 // groups) if transposed else (6, 4 // groups)
        settings = [[each] * dimensions for each in (stride, padding, dilation, extra if transposed else 0)]
        x, w = bf16(2, 4, *SIZES[:dimensions]), bf16(*shape, *FILTER[:dimensions])
        yield x, w, bf16(6), *settings[:3], transposed, settings[3], groups


def wide(args: tuple[Any, ...], dtype: torch.dtype) -> list[Any]:
    return [each.to(dtype) if isinstance(each, Tensor) else each for each in args]


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_all_forms_are_convolutions(dimensions: int) -> None:
    """Strided, padded, dilated, grouped, transposed: all three gradients too."""
    for args in cases(dimensions):
        exact = aten.convolution.default(*wide(args, torch.float64))
        found = prescribed_convolutions.forward(bind(aten.convolution.default, wide(args, torch.float32), {}), PRODUCT)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
        given = (bf16(*exact.shape), args[0], args[1], [6], *args[3:], [True, True, True])
        gradients = aten.convolution_backward.default(*wide(given, torch.float64))
        operands = bind(aten.convolution_backward.default, wide(given, torch.float32), {})
        for one, other in zip(prescribed_convolutions.backward(operands, PRODUCT), gradients, strict=True):
            assert one is not None
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("most", [1, 50, 1000, 20_000])
def test_pieces_have_the_bits_of_the_whole(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Windows are together as often larger as a filter is, so few of them are copied at once."""

    def made() -> list[Any]:
        found: list[Any] = []
        for args in [*cases(1), *cases(2)][:: 3 if most > 1 else 7]:
            operands = bind(aten.convolution.default, wide(args, torch.float32), {})
            found.append(prescribed_convolutions.forward(operands, PRODUCT))
            given = wide((bf16(*found[-1].shape), args[0], args[1], [6], *args[3:], [True] * 3), torch.float32)
            found += prescribed_convolutions.backward(bind(aten.convolution_backward.default, given, {}), PRODUCT)
        return found

    whole = made()
    monkeypatch.setattr(prescribed_convolutions, "_AT_ONCE", most)
    assert all(torch.equal(one, other) for one, other in zip(whole, made(), strict=True))


def test_a_large_filter_takes_no_more_memory_than_pieces() -> None:
    code = """
import resource, torch
from weighbridge.numerics.operations import prescribed_convolutions
from weighbridge.numerics.schemas import bind
from weighbridge.numerics.units.fused_products import product
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rest = None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1
operands = torch.ones(1, 1, 320, 320), torch.ones(1, 1, 64, 64), *rest
prescribed_convolutions.forward(bind(torch.ops.aten.convolution.default, operands, {}), product)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 700, "all windows at once would be 1,080 MiB"


def test_sums_run_over_channels_and_then_over_the_filter() -> None:
    """One window is a product of its elements, in that order, with the filter's; bits differ in another order."""
    x, w = bf16(1, 40, 5, 5), bf16(3, 40, 5, 5)
    operands = (x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    found = prescribed_convolutions.forward(bind(aten.convolution.default, operands, {}), PRODUCT)
    rows = fused_products.product(x.flatten(1), w.flatten(1).mT)
    assert torch.equal(found.flatten(1), rows)
    last = fused_products.product(x.permute(0, 2, 3, 1).flatten(1), w.permute(0, 2, 3, 1).flatten(1).mT)
    assert not torch.equal(found.flatten(1), last)


def test_under_the_policy_16_bits_are_convolved_so_and_float32_is_not() -> None:
    x, w = bf16(2, 4, 9, 8), bf16(6, 4, 3, 3)
    rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    exact = prescribed_convolutions.forward(bind(aten.convolution.default, (x, w, *rest), {}), PRODUCT).bfloat16()
    assert torch.equal(evaluate(aten.convolution.default, [x, w, *rest], {}, Unit()), exact)
    single = evaluate(aten.convolution.default, [x.float(), w.float(), *rest], {}, Unit())
    assert torch.equal(single, evaluate(aten.convolution.default, [x.float(), w.float(), *rest], {}, Alone()))


def test_an_empty_batch_has_gradients_of_zeros() -> None:
    x, w, rest = bf16(0, 4, 9, 8), bf16(6, 4, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert evaluate(aten.convolution.default, [x, w, None, *rest], {}, Unit()).shape == (0, 6, 9, 8)
    given = [bf16(0, 6, 9, 8), x, w, [6], *rest, [False, True, True]]
    _, of_weight, of_bias = evaluate(aten.convolution_backward.default, given, {}, Unit())
    assert not of_weight.any()
    assert not of_bias.any()
