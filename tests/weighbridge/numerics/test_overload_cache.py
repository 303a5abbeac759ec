"""What is known of overloads and names is asked once, until a table changes."""

from __future__ import annotations

import pytest
import torch
from support import rule_tables

from weighbridge.core.errors import UnknownOperationError
from weighbridge.numerics import overload_cache, rule_table
from weighbridge.numerics.bounds import relative
from weighbridge.numerics.rule_table import Kind
from weighbridge.numerics.schemas import Op

aten = torch.ops.aten


def test_an_overload_is_asked_about_once_until_all_is_forgotten() -> None:
    asked: list[str] = []

    @overload_cache.per_op
    def name(op: Op) -> str:
        """Its name."""
        asked.append(op._name)
        return op._name

    assert name.__doc__ == "Its name."
    assert [name(aten.add.Tensor), name(aten.add.Tensor), name(aten.mul.Tensor)] == [
        "aten::add.Tensor", "aten::add.Tensor", "aten::mul.Tensor",
    ]  # fmt: skip
    assert asked == ["aten::add.Tensor", "aten::mul.Tensor"]
    overload_cache.forget()
    name(aten.add.Tensor)
    assert len(asked) == 3


def test_a_name_that_is_refused_is_not_remembered() -> None:
    asked: list[str] = []

    @overload_cache.per_name
    def short(name: str) -> int:
        asked.append(name)
        if len(name) > 3:
            raise ValueError(name)
        return len(name)

    for _ in range(2):
        assert short("abc") == 3
        with pytest.raises(ValueError, match="abcd"):
            short("abcd")
    assert asked == ["abc", "abcd", "abcd"]
    overload_cache.forget()
    assert short("abc") == 3
    assert asked[3:] == ["abc"]


def test_a_rule_that_comes_or_goes_is_noticed() -> None:
    with rule_tables.restored():
        with pytest.raises(UnknownOperationError):
            rule_table.find(aten.cross.default, {})
        rule_table.register("cross.default", Kind.ROUNDED, relative(8))
        assert rule_table.find(aten.cross.default, {}).kind is Kind.ROUNDED
    with pytest.raises(UnknownOperationError):
        rule_table.find(aten.cross.default, {})
