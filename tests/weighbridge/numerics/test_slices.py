"""Slices are the whole's slices: same bound, a value within it, and one log gives both the same rounded result."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_examples import STYLES, Example, Maker
from support.sliced import check, memory_of, narrowed
from support.sliced_calls import calls, overload

from weighbridge.core.errors import TapeError
from weighbridge.numerics.rule_table import RULES
from weighbridge.numerics.schemas import bind
from weighbridge.numerics.slices import cutting, table
from weighbridge.numerics.slices.cutting import slice_of
from weighbridge.numerics.slices.parts import all_of

Tensor = torch.Tensor
CLASSES = get_args(table.Class)
SLICED = sorted(key for key in RULES if table.class_of(key))
OF_THEIR_OWN = table.members("reduction") | table.members("index")
ALWAYS = ("element", "product", "window", "plane", "norm", "place", "column")


def test_every_line_of_the_table_of_rules_is_sliced_or_whole_for_a_reason() -> None:
    undeclared = [key for key in RULES if not table.class_of(key) and not table.why_whole(key)]
    assert undeclared == []
    assert set(CLASSES) == set(cutting._CUT)
    named = [key for keys in (*table._CLASSES.values(), *table.WHOLE.values()) for key in keys.split()]
    assert sorted(named) == sorted(set(named)), "a line is declared twice"
    assert set(named) <= RULES.keys(), "a declared line is in no rule"
    assert not {RULES[key].kind for key in named} & table.WHOLE_KINDS.keys()


@pytest.mark.parametrize("key", ["mm.default", "cat.default", "bernoulli.default"])
def test_a_line_that_declares_neither_is_found(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_CLASS_OF", {k: v for k, v in table._CLASS_OF.items() if k != key})
    without = {why: " ".join(k for k in keys.split() if k != key) for why, keys in table.WHOLE.items()}
    monkeypatch.setattr(table, "WHOLE", without)
    monkeypatch.setattr(table, "WHOLE_KINDS", {k: v for k, v in table.WHOLE_KINDS.items() if k != RULES[key].kind})
    with pytest.raises(AssertionError):
        test_every_line_of_the_table_of_rules_is_sliced_or_whole_for_a_reason()


@pytest.mark.parametrize("key", [key for key in SLICED if key not in OF_THEIR_OWN])
@settings(max_examples=6)
@given(data=st.data())
def test_a_slice_has_the_bound_the_value_and_the_roundings_of_the_whole(key: str, data: st.DataObject) -> None:
    examples = calls(key, Maker(data.draw(st.sampled_from(STYLES))))
    example = data.draw(st.sampled_from(examples))
    assert check(example, data) or table.class_of(key) not in ALWAYS


shapes = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@pytest.mark.parametrize("key", sorted(table.members("reduction")))
@settings(max_examples=12)
@given(data=st.data(), shape=shapes, style=st.sampled_from(STYLES), keep=st.booleans())
def test_reductions_along_any_dimensions(
    key: str, data: st.DataObject, shape: list[int], style: str, keep: bool
) -> None:
    op = overload(key)
    x = Maker(style, data.draw(st.integers(0, 99)))(*shape)
    if data.draw(st.booleans()):
        x = x.transpose(0, -1)  # other strides
    dims = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=len(shape), unique=True))
    dims = [d - len(shape) if data.draw(st.booleans()) else d for d in dims]
    names = [argument.name for argument in op._schema.arguments]
    many = "List" in next(str(a.real_type) for a in op._schema.arguments if a.name == "dim")
    given = {"self": x, "dim": dims if many else dims[0], "keepdim": keep, "p": 2.0, "ord": 3.0}
    if key.startswith(("any", "all")):
        given["self"] = x > 0.5
    args = {name: given[name] for name in names if name in given}
    positional = [a.name for a in op._schema.arguments if not a.kwarg_only and a.name in args]
    positional = positional[: next((i for i, n in enumerate(positional) if n != names[i]), len(positional))]
    rest = {name: value for name, value in args.items() if name not in positional}
    scalar = not keep and len(dims if many else dims[:1]) == len(shape)
    assert check(Example(op, tuple(args[name] for name in positional), rest), data) != scalar


@settings(max_examples=40)
@given(data=st.data(), shape=shapes, key=st.sampled_from(sorted(table.members("index"))))
def test_rows_that_an_index_names(data: st.DataObject, shape: list[int], key: str) -> None:
    make, op = Maker("plain", data.draw(st.integers(0, 99))), overload(key)
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    if key == "embedding.default":
        where = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
        padding = data.draw(st.sampled_from([-1, 0]))
        table = make(shape[0], shape[-1])
        table = table.t().contiguous().t() if data.draw(st.booleans()) else table
        assert check(Example(op, (table, make.index(shape[0], *where), padding)), data)
    elif key == "index_select.default":
        index = make.index(shape[dim], data.draw(st.integers(1, 7)))
        assert check(
            Example(op, (make(*shape), dim, index.to(data.draw(st.sampled_from([torch.int32, torch.int64]))))), data
        )
    else:
        lengths = [
            data.draw(st.integers(1, 7)) if d == dim % len(shape) else data.draw(st.integers(1, n))
            for d, n in enumerate(shape)
        ]
        assert check(Example(op, (make(*shape), dim, make.index(shape[dim], *lengths))), data)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), style=st.sampled_from(STYLES), transposed=st.booleans(), dimensions=st.integers(1, 3))
def test_windows_of_any_convolution(data: st.DataObject, style: str, transposed: bool, dimensions: int) -> None:
    def each(low: int, high: int) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=dimensions, max_size=dimensions))

    make, groups = Maker(style, data.draw(st.integers(0, 99))), data.draw(st.integers(1, 3))
    inner, outer = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    taps, sizes, stride, padding, dilation = each(1, 3), each(1, 8), each(1, 3), each(0, 4), each(1, 3)
    behind = [data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)]
    x = make(data.draw(st.integers(1, 2)), groups * inner, *sizes)
    w = make(groups * inner, outer, *taps) if transposed else make(groups * outer, inner, *taps)
    bias = make(groups * outer) if data.draw(st.booleans()) else None
    if data.draw(st.booleans()):
        x = x.transpose(1, -1).contiguous().transpose(1, -1)  # channels last
    more = behind if transposed else [0] * dimensions
    args = (x, w, bias, stride, padding, dilation, transposed, more, groups)
    op = torch.ops.aten.convolution.default
    try:
        made = op(*args)
    except RuntimeError:
        return  # no such convolution
    if not made.numel():
        return  # nothing, which kernels of other types refuse to make
    assert check(Example(op, args), data)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("weight", [torch.inf, torch.nan])
@settings(max_examples=20)
@given(data=st.data())
def test_windows_of_filters_that_are_not_finite(transposed: bool, weight: float, data: st.DataObject) -> None:
    """Zero times infinity is no number: a part may see no zeros that the whole does not see."""
    make = Maker("plain")
    x, w = make(1, 2, 6, 5), make(2, 2, 3, 3)
    w[0, 1, 2, 0] = weight
    args = (x, w, None, [2, 1], [1, 2], [1, 1], transposed, [0, 0], 1)
    assert check(Example(torch.ops.aten.convolution.default, args), data)


def test_a_window_that_padding_would_make_large_is_executed_whole() -> None:
    x, w = torch.ones(1, 1, 3), torch.ones(1, 1, 2)
    args = (x, w, None, [1], [5000], [10000], False, [0], 1)
    op = torch.ops.aten.convolution.default
    whole = op(*args)
    bound = bind(op, args, {})
    assert slice_of(op, bound, [whole.shape], 0, all_of(whole.shape)) is None


@pytest.mark.parametrize(
    ("x", "w", "bias", "settings"),
    [
        ((1, 2, 9), (2, 2, 3), 2, ([1], [-1], [1], False, [0], 1)),
        ((1, 2, 9), (2, 2, 3), 2, ([0], [1], [1], False, [0], 1)),
        ((1, 2, 9), (2, 2, 3), 2, ([1], [1], [0], False, [0], 1)),
        ((1, 2, 9), (2, 2, 3), 3, ([1], [1], [1], False, [0], 1)),  # more biases than filters
        ((1, 2, 9), (2, 2, 3), 1, ([1], [1], [1], False, [0], 1)),  # a bias for the first filter only
        ((1, 5, 9), (4, 2, 3), 4, ([1], [1], [1], False, [0], 2)),  # a channel in no group
        ((1, 2, 9), (3, 1, 3), 3, ([1], [1], [1], False, [0], 2)),  # a filter in no group
        ((1, 2, 9), (2, 2, 3), 2, ([1], [1], [1], False, [0], 0)),
        ((1, 3, 9), (2, 2, 3), 2, ([1], [1], [1], True, [0], 1)),
        ((2, 9), (2, 2, 3), 2, ([1], [1], [1], False, [0], 1)),
        ((1, 2, 9), (2, 2, 3), 2, ([1, 1, 1], [1], [1], False, [0], 1)),
    ],
)
def test_convolutions_that_no_kernel_makes_have_no_parts(
    x: tuple[int, ...], w: tuple[int, ...], bias: int, settings: tuple[Any, ...]
) -> None:
    """Executing the whole finds out what is wrong; a part that leaves the fault out would be made without complaint."""
    op = torch.ops.aten.convolution.default
    bound = bind(op, (torch.ones(x), torch.ones(w), torch.ones(bias), *settings), {})
    shape = (1, bound["weight"].shape[1] * settings[5] if settings[3] else w[0], 9)
    try:
        found = slice_of(op, bound, [shape], 0, all_of(shape))
    except ArithmeticError:
        return  # the whole is executed, as of all that cannot be narrowed
    assert found is None or bias == 3


@pytest.mark.parametrize(
    ("key", "args", "shape"),
    [
        ("embedding.default", (torch.ones(4, 3, 2), torch.zeros(5, dtype=torch.int64)), (5, 3, 2)),
        ("embedding.default", (torch.ones(4, 3), torch.zeros(5)), (5, 3)),
        ("index_select.default", (torch.ones(4, 3), 0, torch.zeros(5, 1, dtype=torch.int64)), (5, 3)),
        ("index_select.default", (torch.ones(4, 3), 0, torch.zeros(5, dtype=torch.bfloat16)), (5, 3)),
        ("gather.default", (torch.ones(4, 3), 0, torch.zeros(5, 7, dtype=torch.int64)), (5, 7)),
        ("gather.default", (torch.ones(4, 3), 0, torch.zeros(5, dtype=torch.int64)), (5,)),
    ],
)
def test_indices_that_no_kernel_takes_have_no_parts(key: str, args: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    bound = bind(overload(key), args, {})
    assert slice_of(overload(key), bound, [shape], 0, all_of(shape)) is None


@pytest.mark.parametrize("wrong", [-1, 4, -(1 << 40), 1 << 40])
def test_an_index_of_no_row_is_out_of_bounds(wrong: int) -> None:
    table, index = torch.ones(4, 300), torch.tensor([0, 3, 1])
    example = Example(overload("embedding.default"), (table, index, -1))
    which, memory = narrowed(example, torch.ones(3, 300))
    assert which.needed(0, memory[1])[0] == {0}  # the first 1,024 bytes of row 0
    index[0] = wrong
    with pytest.raises(TapeError) as error:
        which.needed(0, {0: memory_of(index)[0]})
    assert error.value.reason == "tape.out_of_bounds"
    assert which.needed(2, {0: memory_of(index)[0]})[0] == {1, 4}  # another chunk, which names other rows


def test_the_digest_names_the_table() -> None:
    assert len(table.digest()) == 32
    assert table.digest() == table.digest()
    before = table.digest()
    saved = table.VERSION
    try:
        table.VERSION = saved + 1
        assert table.digest() != before
    finally:
        table.VERSION = saved
