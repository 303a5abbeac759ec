"""Operations with one right answer give it in whatever shape, where PyTorch's own kernels do not."""

from __future__ import annotations

import pytest
import torch
from support.special_values import FORMATS, Alone, bits, special

from weighbridge.numerics.evaluate import evaluate

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_zeros_have_one_sign_in_vectors_and_behind_them(dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 1, 35).to(dtype)
    whole = evaluate(aten.softshrink.default, [x, 0.5], {}, Alone())
    single = torch.cat([evaluate(aten.softshrink.default, [each.view(1), 0.5], {}, Alone()) for each in x])
    assert not torch.signbit(whole[whole == 0]).any()
    assert torch.equal(whole, single)
    assert torch.equal(torch.signbit(whole), torch.signbit(single))
    assert torch.equal(whole.float(), torch.nn.functional.softshrink(x, 0.5).float())


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", ["hardshrink_backward", "hardtanh_backward", "softshrink_backward"])
def test_gradients_of_what_is_no_number_are_zero_in_vectors_and_behind_them(name: str, dtype: torch.dtype) -> None:
    op, limits = getattr(aten, name).default, (-0.5, 0.5) if "tanh" in name else (0.5,)
    grad, x = (each.reshape(-1) for each in torch.meshgrid(special(dtype)[:35], special(dtype)[:35], indexing="ij"))
    whole = evaluate(op, [grad, x, *limits], {}, Alone())
    pairs = zip(grad.split(1), x.split(1), strict=True)
    single = torch.cat([evaluate(op, [g, each, *limits], {}, Alone()) for g, each in pairs])
    assert torch.equal(bits(whole), bits(single))
    assert x.isnan().any()
    assert not bits(whole[x.isnan()]).any()
