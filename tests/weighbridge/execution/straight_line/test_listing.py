"""Lists of operations: the loop gives the bits and checksums of the operations evaluated one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.float_strategies import Floats, arrays

from prover.capture.generators import Generators
from prover.capture.recording_context import Recording
from weighbridge.execution.straight_line.frame import Frame, Line
from weighbridge.execution.straight_line.listing import entry
from weighbridge.execution.straight_line.sequence import Sequence
from weighbridge.numerics.evaluate import evaluate
from weighbridge.program.operands import Operands, resolve
from weighbridge.transcript.tape import DTYPES, Node, Tape

Tensor = torch.Tensor
X, Y, Z, ONE, MADE, TURNED, SHIFTED = ("t", 0), ("t", 1), ("t", 2), ("t", 3), 4, ("t", 5), ("t", 6)
LISTED: dict[str, tuple[Any, ...]] = {
    "add.Tensor": (X, Y), "sub.Tensor": (X, Y), "mul.Tensor": (X, Y), "div.Tensor": (X, Y), "sqrt.default": (X,),
    "mul.Scalar": (X, ("v", 0)), "add.Scalar": (X, ("v", 0)), "lerp.Scalar": (X, Y, ("v", 0)),
    "addcmul.default": (X, Y, Z), "addcdiv.default": (X, Y, Z),
}  # fmt: skip
FORMS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *((name, operands, {}) for name, operands in LISTED.items()),
    *((f"{name}.Tensor", (X, ("v", 0)), {}) for name in ("add", "sub", "mul", "div")),
    *((f"{name}.Tensor", (X, ONE), {}) for name in ("add", "sub", "mul", "div")),
    ("add.Tensor", (X, Y), {"alpha": ("v", 0)}),
    ("addcmul.default", (X, Y, Z), {"value": ("v", 0)}),
    ("addcdiv.default", (X, Y, Z), {"value": ("v", 0)}),
    ("mul.Tensor", (X, X), {}),
]


class Noted(Recording):
    """A context that keeps what a list gave."""

    def begin(self, op: int, node: Node | None = None) -> None:
        self.op = op

    def take_listed(self, lines: list[Line], sums: Any, reads: Any) -> None:
        self.checksums += sums.tolist()
        self.hosts += reads.tolist()


def made(
    name: str, operands: tuple[Any, ...], named: dict[str, Any], n: int, types: tuple[str, str, str] = ("f32",) * 3
) -> tuple[Tape, Node]:
    """A tape with one operation on arrays of n elements, in place or not.

    Args:
        name: The operation.
        operands: Its positional operands.
        named: Its others.
        n: Elements.
        types: Of the first operand, of the others, and of the result.
    """
    whole = (n,), (1,)
    refs: list[Any] = [(slot, types[slot > 0], *whole, 0) for slot in range(3)]
    refs += [
        (3, types[1], (), (), 0),
        (4, types[2], *whole, 0),
        (1, types[1], (n // 2,), (2,), 0),
        (0, types[0], (n - 1,), (1,), 1),
    ]
    change = name.split(".")[0].endswith("_")
    size = DTYPES[types[2]].itemsize * n
    node = Node(name, operands, named, (0,) if change else (MADE,), () if change else ((4, size),))
    return Tape(refs=refs, nodes=[node], values=1), node


@pytest.mark.parametrize("change", [False, True])
@settings(max_examples=25)
@given(
    arrays(48),
    st.integers(2, 16),
    st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-(1 << 53), 1 << 53),
)
def test_a_list_gives_the_bits_of_the_operations(change: bool, values: Floats, n: int, number: float) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        floats = torch.from_numpy(values.astype(np.float32))
    contents = [floats[:n], floats[16 : 16 + n], floats[32 : 32 + n], floats[47]]
    for name, operands, named in FORMS:
        base, _, overload = name.partition(".")
        tape, node = made(f"{base}_.{overload}" if change else name, operands, named, n)
        results = {listed: outcome(tape, node, contents, number, listed=listed) for listed in (False, True)}
        assert torch.equal(results[True][0], results[False][0]), name
        assert results[True][1] == results[False][1], name


CHAINS = {"lerp.Scalar", "addcmul.default", "addcdiv.default"}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-40, -1e-40, 6e-8, -3e-8, 2.0**-14, 65519.0, 65520.0, 3e38]


@pytest.mark.parametrize("first", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("other", ["f32", "bf16", "f16"])
@settings(max_examples=10, deadline=None)
@given(arrays(48), st.integers(2, 16), st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_list_gives_the_bits_of_16_bits_too(first: str, other: str, values: Floats, n: int, number: float) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        floats = torch.from_numpy(np.concatenate([SPECIAL, values])[:48].astype(np.float32))
    types = DTYPES[first], DTYPES[other]
    contents = [floats[:n].to(types[0]), *(floats[k : k + n].to(types[1]) for k in (7, 32)), floats[47].to(types[1])]
    both = next(name for name, dtype in DTYPES.items() if dtype is torch.promote_types(*types))
    for change in (False, True):
        for name, operands, named in FORMS:
            base, _, overload = name.partition(".")
            chain = name in CHAINS or named
            if chain and not (first == other == "f32"):
                continue
            result = both if Y in operands and not change else first
            tape, node = made(f"{base}_.{overload}" if change else name, operands, named, n, (first, other, result))
            results = {listed: outcome(tape, node, contents, number, listed=listed) for listed in (False, True)}
            assert torch.equal(results[True][0], results[False][0]), name
            assert results[True][1] == results[False][1], name


@pytest.mark.parametrize("source", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("target", ["f32", "bf16", "f16"])
def test_conversions_are_listed_and_have_no_checksum(source: str, target: str) -> None:
    """Every value of 16 bits, and of float32 what lies at and beside the middle between two; NaN of all patterns."""
    every = torch.arange(1 << 16, dtype=torch.int64)
    if source == "f32":
        lows = (0, 1, 0x1000, 0x2FFF, 0x3000, 0x8000, 0x8001, 0xFFFF)
        x = torch.cat([(every << 16 | low).to(torch.int32) for low in lows]).view(torch.float32)
    else:
        x = every.to(torch.int16).view(DTYPES[source])
    tape, node = made("_to_copy.default", (X,), {"dtype": ("d", target)}, len(x), (source, source, target))
    if source == target:
        assert entry(node, tape) is None
        return
    contents = [x, x, x, x[0]]
    results = {listed: outcome(tape, node, contents, 0.0, listed=listed) for listed in (False, True)}
    assert torch.equal(results[True][0], results[False][0])
    assert results[True][1] == results[False][1] == []


def outcome(tape: Tape, node: Node, contents: list[Tensor], number: float, *, listed: bool) -> tuple[Tensor, list[int]]:
    """Bits and checksums of an operation, by itself or in a list."""
    slots, context = {k: t.clone() for k, t in enumerate(contents)}, Noted(1, Generators())
    operands = Operands(torch.device("cpu"), tape, slots, [number])
    found = entry(node, tape)
    assert found is not None
    if listed:
        frame = Frame(torch.device("cpu"), slots, operands, [number], context, lambda slot: None)
        Sequence([(0, node, found)], tape)(frame)
        out = operands.tensor(node.outputs[0] or 0)
    else:
        args = [operands.decode(v) for v in node.args]
        out = evaluate(resolve(node.op), args, {k: operands.decode(v) for k, v in node.kwargs.items()}, context)
    return out.contiguous().view(torch.int32 if out.dtype is torch.float32 else torch.int16), context.checksums


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("mul.Tensor", (X, TURNED)), ("mul_.Tensor", (X, SHIFTED)), ("mul_.Tensor", (SHIFTED, X)),
        ("exp.default", (X,)), ("add.Tensor", (ONE, X)), ("bernoulli_.float", (X, ("v", 0))),
        ("sub.Tensor", (X, X, ("v", 0))),
    ],
)  # fmt: skip
def test_what_a_list_cannot_do_is_in_none(name: str, operands: tuple[Any, ...]) -> None:
    """Other shapes, memory that overlaps, what is rounded or drawn, and forms that have no line."""
    tape, node = made(name, operands, {}, 8)
    assert entry(node, tape) is None


@pytest.mark.parametrize(
    ("name", "operands", "types"),
    [
        ("lerp.Scalar", (X, Y, ("v", 0)), ("bf16", "bf16", "bf16")),
        ("addcmul.default", (X, Y, Z), ("f32", "bf16", "f32")),
        ("mul_.Tensor", (X, ("t", 7)), ("bf16", "f32", "bf16")),
        ("_to_copy.default", (X,), ("bf16", "f32", "bf16")),
        ("_to_copy.default", (X,), ("bf16", "f32", "i64")),
    ],
)
def test_what_a_list_cannot_do_with_16_bits_is_in_none(name: str, operands: Any, types: tuple[str, str, str]) -> None:
    """Sequences that are defined for float32 only, one memory taken for two formats, and what converts nothing."""
    tape, node = made(name, operands, {}, 8, types)
    tape.refs.append((0, "f16", (8,), (1,), 0))
    assert entry(node, tape) is None


def test_a_number_is_read_where_it_stands() -> None:
    tape, node = made("_local_scalar_dense.default", (ONE,), {}, 2)
    listed = entry(node._replace(outputs=(None,), births=()), tape)
    assert listed is not None
    slots = {3: torch.tensor(0.1)}
    context = Noted(1, Generators())
    operands = Operands(torch.device("cpu"), tape, slots, [])
    Sequence([(0, node, listed)], tape)(Frame(torch.device("cpu"), slots, operands, [], context, lambda slot: None))
    assert context.hosts == [float(np.float32(0.1))]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_number_of_16_bits_is_read_where_it_stands(dtype: str) -> None:
    tape, node = made("_local_scalar_dense.default", (ONE,), {}, 2, ("f32", dtype, "f32"))
    listed = entry(node._replace(outputs=(None,), births=()), tape)
    assert listed is not None
    slots = {3: torch.tensor(0.1, dtype=DTYPES[dtype])}
    context = Noted(1, Generators())
    operands = Operands(torch.device("cpu"), tape, slots, [])
    Sequence([(0, node, listed)], tape)(Frame(torch.device("cpu"), slots, operands, [], context, lambda slot: None))
    assert context.hosts == [slots[3].item()]
