"""Slices are the whole's slices: same bound, a value within it, and one log gives both the same rounded result."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bound_errors import copied
from support.operator_examples import EXAMPLES, STYLES, Example, Maker

from weighbridge.execution.dispute.narrowing import _flat, _of, _Sliced
from weighbridge.numerics import slices
from weighbridge.numerics.conformance.bound_policy import STRICT
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.rounding import contested
from weighbridge.numerics.rounding.bound import Bound, dense_bound
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.numerics.rule_table import RULES, Kind
from weighbridge.numerics.schemas import argument_names, bind

Tensor = torch.Tensor
SLICED = sorted(key for key in RULES if slices.sliced(key))


class _Writing(_Sliced):
    """Records the log of the whole."""

    logged: OpEntries | None = None

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        self.wide, self.bound = wide.contiguous(), bound
        made = contested.record(self.wide, bound, 0, 0)
        self.logged = made.entries
        return made.out


def calls(key: str, style: str) -> list[Example]:
    """Returns calls of an overload: its examples, or operands as its schema asks for them."""
    make = Maker(style)
    if key in EXAMPLES:
        return list(EXAMPLES[key](make))
    name, _, overload = key.partition(".")
    op = getattr(getattr(torch.ops.aten, name), overload)
    args: list[Any] = []
    for number, argument in enumerate(a for a in op._schema.arguments if not a.has_default_value()):
        x = make(5, 7) if number == 0 else make(7)
        kind = str(argument.type)
        if "Tensor" not in kind:
            args.append(0.75)
        elif argument.name in ("mask", "condition") or name.startswith("logical"):
            args.append(x > 0)
        elif name.startswith("bitwise"):
            args.append((x.clamp(-100, 100) * 8).to(torch.int64))
        else:
            args.append(make() if key == "masked_fill.Tensor" and number == 2 else x)
    limits = {"clamp.default": {"min": -0.5}, "clamp.Tensor": {"min": make(7)}}
    return [Example(op, tuple(args), limits.get(key, {}))]


def test_every_line_is_sliced_or_whole() -> None:
    assert {*slices._ELEMENT_NAMES, *slices._ROW_NAMES, *slices._PRODUCT} == {*SLICED}
    drawn = {key for key, rule in RULES.items() if rule.kind in (Kind.RANDOM, Kind.HOST, Kind.REFUSED, Kind.COMPOSED)}
    assert not drawn & set(SLICED)


@pytest.mark.parametrize("key", SLICED)
@settings(max_examples=6)
@given(data=st.data())
def test_a_slice_has_the_bound_the_value_and_the_roundings_of_the_whole(key: str, data: st.DataObject) -> None:
    examples = [e for e in calls(key, data.draw(st.sampled_from(STYLES)))]
    example = data.draw(st.sampled_from(examples))
    bound = bind(example.op, example.args, example.kwargs)
    writing = _Writing(STRICT, None)
    with torch.backends.mkldnn.flags(enabled=False):
        whole = evaluate(example.op, [copied(a) for a in example.args], copied(example.kwargs), writing).contiguous()
    shape, count = tuple(whole.shape), whole.numel()
    if not count:
        return
    start = data.draw(st.integers(0, count - 1))
    box = slices.enclosing(shape, start, data.draw(st.integers(start + 1, count)))
    box = slices.widened(example.op, bound, shape, box)
    boxes = slices.operand_boxes(example.op, bound, shape, box)
    if boxes is None:
        assert shape == () or key in slices._ROW_NAMES
        return
    names = argument_names(example.op)[0]
    parts = {name: bound[name][tuple(slice(*part) for part in boxes[name])].clone() for name in boxes}
    args = [parts.get(name, value) for name, value in zip(names, example.args, strict=False)]
    mine = _flat(shape, box)
    context = _Sliced(STRICT, _of(writing.logged, mine))
    with torch.backends.mkldnn.flags(enabled=False):
        part = evaluate(example.op, args, {k: parts.get(k, v) for k, v in example.kwargs.items()}, context)
    there = tuple(slice(*each) for each in box)
    assert math.prod(part.shape) == len(mine)
    expected, got = whole[there].contiguous(), part.contiguous()
    assert bytes(got.view(-1).view(torch.uint8).numpy().data) == bytes(expected.view(-1).view(torch.uint8).numpy().data)
    if context.roundings:
        e = dense_bound(writing.wide, writing.bound).view(shape)[there].reshape(-1)
        other = dense_bound(context.wide, context.bound)
        same = ((e - other).abs() <= 2.0**-21 * e) | (e == other) | (e.isnan() & other.isnan())
        assert bool(same.all())
        x, y = writing.wide[there].reshape(-1), context.wide.view(-1)
        assert bool((((x - y).abs() <= e + other) | (x == y) | ~torch.isfinite(x)).all())
