"""The floor that step times are compared with: wide arithmetic operation by operation, with notes or without."""

from __future__ import annotations

import pytest
import torch

from benchmarks.bare import Bare, Noted
from weighbridge.numerics.rounding import formats


@pytest.mark.parametrize("mode", [Bare, Noted])
def test_products_are_wide_and_come_back_narrow(mode: type[Bare]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(40, 40, generator=generator) for _ in range(2))
    with mode(1):
        found = x @ w
    assert torch.equal(found, (x.double() @ w.double()).float())
    assert not torch.equal(found, x @ w)


def test_notes_name_each_operation_and_weigh_what_it_computed() -> None:
    x = torch.arange(6.0).view(2, 3)
    with Noted(1) as noted:
        tripled = x * 3
        turned = tripled.t()
        turned.add_(1)
    assert [name for name, _, _ in noted.notes] == ["aten::mul.Tensor", "aten::t", "aten::add_.Tensor"]
    (_, _, (made,)), (_, (source,), (view,)), _ = noted.notes
    assert made == source
    assert view[0] == made[0]
    assert (tuple(made[2]), tuple(view[2])) == ((2, 3), (3, 2))
    once, rows = torch.arange(6.0) * 3, turned.contiguous().view(-1)
    assert noted.checksums == [formats.checksum(once), formats.checksum(rows)]
