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
from weighbridge.transcript.tape import Node, Tape

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


def made(name: str, operands: tuple[Any, ...], named: dict[str, Any], n: int) -> tuple[Tape, Node]:
    """A tape with one operation on arrays of n elements, in place or not."""
    whole = (n,), (1,)
    refs: list[Any] = [(slot, "f32", *whole, 0) for slot in range(3)]
    refs += [
        (3, "f32", (), (), 0),
        (4, "f32", *whole, 0),
        (1, "f32", (n // 2,), (2,), 0),
        (0, "f32", (n - 1,), (1,), 1),
    ]
    change = name.split(".")[0].endswith("_")
    node = Node(name, operands, named, (0,) if change else (MADE,), () if change else ((4, 4 * n),))
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
    return out.contiguous().view(torch.int32), context.checksums


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


def test_a_number_is_read_where_it_stands() -> None:
    tape, node = made("_local_scalar_dense.default", (ONE,), {}, 2)
    listed = entry(node._replace(outputs=(None,), births=()), tape)
    assert listed is not None
    slots = {3: torch.tensor(0.1)}
    context = Noted(1, Generators())
    operands = Operands(torch.device("cpu"), tape, slots, [])
    Sequence([(0, node, listed)], tape)(Frame(torch.device("cpu"), slots, operands, [], context, lambda slot: None))
    assert context.hosts == [float(np.float32(0.1))]
