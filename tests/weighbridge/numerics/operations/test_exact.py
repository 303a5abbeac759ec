"""Operations with one right answer give it in whatever shape, where PyTorch's own kernels do not."""

from __future__ import annotations

import pytest
import torch
from support.special_values import Alone

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
