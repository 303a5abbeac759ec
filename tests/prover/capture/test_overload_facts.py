"""What a capture knows of overloads before it sees their operands."""

from __future__ import annotations

import torch

from prover.capture.overload_facts import overload
from weighbridge.numerics.rule_table import Kind

aten = torch.ops.aten


def test_numbers_in_place_of_tensors_are_values_and_sizes_are_structure() -> None:
    found = overload(aten.add_.Tensor)
    assert (found.name, found.mutated) == ("add_.Tensor", ("self",))
    assert found.positions == {0, 1, 2}
    assert found.names == {"self", "other", "alpha"}
    assert overload(aten.view.default).positions == {0}


def test_what_the_operands_decide_stays_open() -> None:
    scaled = overload(aten.add_.Tensor)
    assert scaled.decomposition is not None
    assert scaled.unless is not None
    assert scaled.unless(torch.ones(2), torch.ones(2), alpha=2)
    assert not scaled.unless(torch.ones(2).double(), torch.ones(2).double(), alpha=2)
    assert overload(aten.arange.default).rule is None
    product = overload(aten.mm.default)
    assert product.rule is not None
    assert product.rule.kind is Kind.ROUNDED
    assert product.decomposition is None


def test_what_pytorch_replaces_and_what_no_tape_has() -> None:
    assert overload(aten.matmul.default).composite
    assert not overload(aten.mm.default).composite
    assert overload(torch.ops.prim.device.default).aside
    assert not overload(aten.mm.default).aside
