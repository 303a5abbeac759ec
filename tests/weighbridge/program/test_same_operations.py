"""Programs whose operations come in another order are the same; others are not, whatever differs in them."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import arm_recording
from support.recordings import compare_here
from support.releases import older_than_pinned

from weighbridge.execution.differences import programs
from weighbridge.program.same_operations import digest_of_operations
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Input, Node, Tape

ON_ARM = Path(__file__).parents[2] / "golden" / "arm"
ROW = ("f32", (4,), (1,), 0)


def of(*nodes: tuple[str, tuple[int, ...], int], draws: dict[int, int] | None = None) -> Tape:
    """A tape of operations on rows of four numbers: (name, slots of its operands, slot of its result).

    Slots 0 and 1 enter. A result in a slot that is not yet there is made, as every one in this order.
    """
    made = {0, 1}
    slots = sorted({s for _, operands, result in nodes for s in (*operands, result)})
    refs = {slot: index for index, slot in enumerate(slots)}
    written = []
    for place, (name, operands, result) in enumerate(nodes):
        births = () if result in made else ((result, 16),)
        made.add(result)
        draw = None if draws is None or place not in draws else (0, draws[place])
        args = tuple(("t", refs[s]) for s in operands)
        written.append(Node(name, args, {}, (refs[result],), births, draw))
    inputs = [Input(0, 16, "state", "x"), Input(1, 16, "state", "y")]
    return Tape(inputs, [(slot, *ROW) for slot in slots], written, survivors=[(max(made), f"~0/{max(made)}")])


BASE = of(("mul.Tensor", (0, 1), 2), ("exp.default", (0,), 3), ("sub.Tensor", (2, 3), 4), ("mul_.Tensor", (4, 0), 4))
OTHERS = {
    "another operation": of(
        ("mul.Tensor", (0, 1), 2), ("sin.default", (0,), 3), ("sub.Tensor", (2, 3), 4), ("mul_.Tensor", (4, 0), 4)
    ),
    "operands the other way round": of(
        ("mul.Tensor", (0, 1), 2), ("exp.default", (0,), 3), ("sub.Tensor", (3, 2), 4), ("mul_.Tensor", (4, 0), 4)
    ),
    "another input": of(
        ("mul.Tensor", (0, 1), 2), ("exp.default", (1,), 3), ("sub.Tensor", (2, 3), 4), ("mul_.Tensor", (4, 0), 4)
    ),
    "written to in another place": of(
        ("mul.Tensor", (0, 1), 2), ("exp.default", (0,), 3), ("sub.Tensor", (2, 3), 4), ("mul_.Tensor", (3, 0), 3)
    ),
    "written to earlier": of(
        ("mul.Tensor", (0, 1), 2), ("mul_.Tensor", (2, 0), 2), ("exp.default", (0,), 3), ("sub.Tensor", (2, 3), 4)
    ),
    "one operation more": of(
        ("mul.Tensor", (0, 1), 2), ("exp.default", (0,), 3), ("sub.Tensor", (2, 3), 4), ("mul_.Tensor", (4, 0), 4),
        ("mul_.Tensor", (4, 0), 4),
    ),
    "another size of what enters": replace(BASE, inputs=[Input(0, 32, "state", "x"), BASE.inputs[1]]),
    "another view of an operand": replace(BASE, refs=[(0, "f32", (4,), (0,), 0), *BASE.refs[1:]]),
    "nothing survives": replace(BASE, survivors=[]),
}  # fmt: skip


def test_independent_operations_may_change_places() -> None:
    other = of(
        ("exp.default", (0,), 2), ("mul.Tensor", (0, 1), 3), ("sub.Tensor", (3, 2), 4), ("mul_.Tensor", (4, 0), 4)
    )
    assert other.encode() != BASE.encode()
    assert digest_of_operations(other) == digest_of_operations(BASE)
    found = programs(1, BASE, other)
    assert found["name"] == "order of the operations, which are the same"
    assert "mul.Tensor" in found["a"]
    assert "exp.default" in found["b"]


@pytest.mark.parametrize("name", OTHERS)
def test_other_programs_are_others(name: str) -> None:
    assert digest_of_operations(OTHERS[name]) != digest_of_operations(BASE)
    assert "order" not in programs(1, BASE, OTHERS[name])["name"]


def test_what_reads_memory_does_not_change_places_with_what_writes_there() -> None:
    reads_first = of(("exp.default", (0,), 2), ("mul_.Tensor", (0, 1), 0))
    writes_first = of(("mul_.Tensor", (0, 1), 0), ("exp.default", (0,), 2))
    assert digest_of_operations(reads_first) != digest_of_operations(writes_first)


def test_draws_do_not_change_places() -> None:
    """Each has its place in the stream of random numbers, which decides what it draws."""
    first = of(("bernoulli.default", (0,), 2), ("bernoulli.default", (1,), 3), draws={0: 0, 1: 1})
    other = of(("bernoulli.default", (1,), 2), ("bernoulli.default", (0,), 3), draws={0: 0, 1: 1})
    assert digest_of_operations(first) != digest_of_operations(other)


@pytest.mark.skipif(older_than_pinned(), reason="another release of PyTorch has other operations")
def test_a_recording_on_arm_is_the_same_program_in_another_order(tmp_path: Path) -> None:
    """PyTorch for ARM was built by a compiler that evaluates arguments the other way round."""
    arm_recording.record(tmp_path / "run", updates=1)
    pairs = list(tapes(Transcript.open(tmp_path / "run"), Transcript.open(ON_ARM)))
    for ours, theirs in pairs:
        assert digest_of_operations(ours) == digest_of_operations(theirs)
    if platform.machine() == "x86_64":
        assert [ours == theirs for ours, theirs in pairs] == [True, False]
        found = compare_here(tmp_path / "run", ON_ARM)["differences"]
        assert [(each["step"], each["name"]) for each in found] == [(1, "order of the operations, which are the same")]


def tapes(*transcripts: Transcript) -> Iterator[Any]:
    """The programs of each step in turn."""
    for step in range(transcripts[0].steps):
        yield [Tape.decode(transcript.tape(transcript.step(step).tape)) for transcript in transcripts]
