"""Calls of operations with parts, but reductions and indices, are disputed: random types, sizes and policies."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.narrowed import forged
from support.operator_examples import STYLES, Example, Maker
from support.single_steps import SingleStep
from support.sliced_calls import calls
from support.special_values import FORMATS, special

from weighbridge.core.errors import WeighbridgeError
from weighbridge.numerics.conformance.bound_policy import named
from weighbridge.numerics.rule_table import RULES
from weighbridge.numerics.slices import table

Tensor = torch.Tensor
SLICED = sorted(key for key in RULES if table.class_of(key) not in (None, "reduction", "index"))
POLICIES = ("strict", "mixed", "blocked-64", "unit-vdpbf16ps")
MOST = 20_000
"""Elements of an operand."""


class _Larger(Maker):
    """Makes each dimension so many times as large, but those of one."""

    def __init__(self, style: str, times: int) -> None:
        super().__init__(style)
        self._times = times

    def _sizes(self, shape: tuple[int, ...]) -> list[int]:
        return [size if size == 1 else size * self._times for size in shape]

    def __call__(self, *shape: int) -> Tensor:
        """See `Maker`."""
        return super().__call__(*self._sizes(shape))

    def fraction(self, *shape: int) -> Tensor:
        """See `Maker.fraction`."""
        return super().fraction(*self._sizes(shape))

    def index(self, high: int, *shape: int) -> Tensor:
        """See `Maker.index`."""
        return super().index(high, *self._sizes(shape))


def _relaid(t: Tensor, way: int) -> Tensor:
    """Returns a tensor with the same values and other strides, or with one index of a dimension everywhere."""
    if not t.dim() or not t.numel() or way == 0:
        return t
    if way == 1:
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    if way == 2:
        return torch.stack([t, t], -1)[..., 1]
    return t.narrow(way % t.dim(), 0, 1).expand_as(t)


def _changed(t: Tensor, dtype: torch.dtype, specials: bool, way: int) -> Tensor:
    if t.is_floating_point():
        t = t.to(dtype)
        if specials and t.dim():
            values, generator = special(dtype), torch.Generator().manual_seed(way)
            where = torch.rand(t.shape, generator=generator) < 0.1
            t = torch.where(where, values[torch.randint(0, 70, t.shape, generator=generator)], t)
    return _relaid(t, way)


@settings(max_examples=25, deadline=None)
@given(
    key=st.sampled_from(SLICED), times=st.sampled_from([1, 2, 3, 5, 9, 20]), style=st.sampled_from(STYLES),
    dtype=st.sampled_from([*FORMATS]), specials=st.booleans(), policy=st.sampled_from(POLICIES), data=st.data(),
)  # fmt: skip
def test_honest_parties_are_right_and_liars_are_wrong(
    key: str, times: int, style: str, dtype: torch.dtype, specials: bool, policy: str, data: st.DataObject
) -> None:
    assume(times < 9 or table.class_of(key) in ("element", "row"))
    try:
        example = data.draw(st.sampled_from(calls(key, _Larger(style, times))))
    except RuntimeError:  # operands of other sizes than a list among them says
        return
    ways = [data.draw(st.integers(0, 4)) if isinstance(each, Tensor) else 0 for each in example.args]
    args: list[Any] = [
        _changed(each, dtype, specials, way) if isinstance(each, Tensor) else each
        for each, way in zip(example.args, ways, strict=True)
    ]
    assume(all(each.numel() <= MOST for each in args if isinstance(each, Tensor)))
    try:
        step = SingleStep(Example(example.op, tuple(args), example.kwargs), named(policy))
    except (WeighbridgeError, RuntimeError):
        return
    told = step.told()
    assert (told.parted, len(told.leaves)) == ("", 3)
    assert step.judged(told).verdict == "admissible"
    if (which := step.narrowed()) is None:
        return
    chunks = [chunk for chunk in range(which.chunks) if len(which.pieces(chunk)) > 1] or [which.chunks - 1]
    chunk = data.draw(st.sampled_from(chunks))
    shown = step.told(chunk)
    said = step.judged(shown, chunk)
    assert (said.verdict, said.code) == ("admissible", "dispute.follows.part"), said.reason
    lie = forged(told, 1, chunk, shown, shown.opening or b"")
    said = step.judged(shown, chunk, **lie)
    assert (said.verdict, said.code) == ("false", "dispute.leaf"), said.reason
