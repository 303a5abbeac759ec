"""What is known of overloads and names is asked once, until a table changes."""

from __future__ import annotations

import pytest
import torch
from support import rule_tables

from weighbridge.errors import UnknownOperationError
from weighbridge.numerics import memo, rules
from weighbridge.numerics.bounds import relative
from weighbridge.numerics.rules import Kind

aten = torch.ops.aten


def test_an_overload_is_asked_about_once_until_all_is_forgotten() -> None:
    asked: list[str] = []

    @memo.per_op
    def name(op: rules.Op) -> str:
        """Its name."""
        asked.append(op._name)
        return op._name

    assert name.__doc__ == "Its name."
    assert [name(aten.add.Tensor), name(aten.add.Tensor), name(aten.mul.Tensor)] == [
        "aten::add.Tensor", "aten::add.Tensor", "aten::mul.Tensor",
    ]  # fmt: skip
    assert asked == ["aten::add.Tensor", "aten::mul.Tensor"]
    memo.forget()
    name(aten.add.Tensor)
    assert len(asked) == 3


def test_a_name_that_is_refused_is_not_remembered() -> None:
    asked: list[str] = []

    @memo.per_name
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
    memo.forget()
    assert short("abc") == 3
    assert asked[3:] == ["abc"]


def test_a_rule_that_comes_or_goes_is_noticed() -> None:
    with rule_tables.restored():
        with pytest.raises(UnknownOperationError):
            rules.find(aten.cross.default, {})
        rules.register("cross.default", Kind.ROUNDED, relative(8))
        assert rules.find(aten.cross.default, {}).kind is Kind.ROUNDED
    with pytest.raises(UnknownOperationError):
        rules.find(aten.cross.default, {})
