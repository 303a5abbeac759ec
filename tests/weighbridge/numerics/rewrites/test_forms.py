"""Other forms of an overload compute the same and put it where they should."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.releases import lacking

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.rewrites import decompositions, forms

aten = torch.ops.aten
Tensor = torch.Tensor


def real(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def found(op: Any) -> Any:
    replace = decompositions.find(op)
    assert replace is not None
    return replace


def test_counterparts_have_the_same_operands() -> None:
    assert forms.counterpart(aten.max.dim_max) is aten.max.dim
    assert forms.counterpart(aten.pow_.Tensor) is aten.pow.Tensor_Tensor
    assert forms.counterpart(aten.any.all_out) is aten.any.default
    assert forms.counterpart(aten._fused_adam.default) is aten._fused_adam_.default
    assert forms.counterpart(aten.mm.default) is None


def test_results_go_into_every_out_operand_and_are_them() -> None:
    x, values, indices = real(3, 4), torch.empty(3), torch.empty(3, dtype=torch.int64)
    returned = found(aten.max.dim_max)(x, 1, max=values, max_values=indices)
    assert returned[0] is values
    assert returned[1] is indices
    wanted = x.max(1)
    assert torch.equal(values, wanted.values)
    assert torch.equal(indices, wanted.indices)


def test_in_place_forms_change_their_first_operand() -> None:
    x, exponent = real(5).abs(), real(5, seed=1)
    wanted = x**exponent
    assert found(aten.pow_.Tensor)(x, exponent) is x
    torch.testing.assert_close(x, wanted)


def test_an_out_operand_of_another_shape_is_refused_and_untouched() -> None:
    out = torch.full((2,), 7.0)
    with pytest.raises(RefusedOperationError, match="resize"):
        found(aten.round.decimals_out)(real(3), decimals=1, out=out)
    assert out.tolist() == [7.0, 7.0]


@pytest.mark.parametrize("decimals", [0, 2, -1])
def test_rounding_to_decimals(decimals: int) -> None:
    x = real(200) * 100
    assert torch.equal(found(aten.round.decimals)(x, decimals=decimals), torch.round(x, decimals=decimals))


OPTIONS: dict[str, Any] = {
    "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": False, "maximize": False,
}  # fmt: skip


def test_the_functional_form_of_a_fused_optimizer_changes_nothing_and_returns_what_the_other_makes() -> None:
    def operands() -> list[list[Tensor]]:
        return [[real(3)], [real(3, seed=1)], [torch.zeros(3)], [torch.zeros(3)], [], [torch.tensor(1.0)]]

    given, wanted = operands(), operands()
    returned = found(aten._fused_adam.default)(*given, **OPTIONS)
    aten._fused_adam_.default(*wanted, **OPTIONS)
    for before, now in zip(operands(), given, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True))
    assert len(returned) == 5
    for got, want in zip(returned, wanted, strict=False):
        torch.testing.assert_close(got, want)
    out = [torch.empty(3)]
    assert found(aten._fused_adam.out)(*given, **OPTIONS, out=out) is None
    torch.testing.assert_close(out, wanted[0])
    torch.testing.assert_close(given[2], wanted[2])


def test_forms_that_only_rest_on_each_other_are_not_supported() -> None:
    assert decompositions.find(aten.igamma.default) is None
    assert decompositions.find(aten.igamma_.default) is None
    assert decompositions.find(aten.igamma.out) is None


@pytest.mark.skipif("_foreach_powsum.Scalar" in lacking(), reason="this PyTorch has no such operation")
def test_sums_of_powers_of_lists() -> None:
    x = [real(3), real(2, 2)]
    for got, t in zip(found(aten._foreach_powsum.Scalar)(x, 3), x, strict=True):
        torch.testing.assert_close(got, t.abs().pow(3).sum())
