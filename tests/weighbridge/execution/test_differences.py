"""Two programs that differ are told apart by the field that differs, also where their operations read alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from weighbridge.execution.differences import programs
from weighbridge.transcript.tape import Input, Node, Tape

ROW = ((4,), (1,), 0)
TAPE = Tape(
    inputs=[Input(0, 16, "free", "x"), Input(1, 16, "free", "y")],
    refs=[(0, "f32", *ROW), (1, "f32", *ROW), (2, "f32", *ROW)],
    nodes=[Node("add.Tensor", (("t", 0), ("t", 1)), {"alpha": 2}, (2,), ((2, 16),))],
    frees=[(1, 0)],
    survivors=[(2, "~0/2")],
)


def changed(**fields: Any) -> Tape:
    return replace(TAPE, nodes=[TAPE.nodes[0]._replace(**fields)])


CHANGES = {
    "operation": changed(op="sub.Tensor"),
    "operand self of the operation": changed(args=(("t", 1), ("t", 1))),
    "results of the operation": replace(TAPE, refs=[*TAPE.refs[:2], (2, "f32", (4,), (2,), 0)]),
    "memory that the operation makes": changed(births=((2, 32),)),
    "random draw of the operation": changed(draw=(0, 0)),
    "number of operations": replace(TAPE, nodes=TAPE.nodes * 2),
    "frees": replace(TAPE, frees=[(1, 1)]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_field_that_differs_is_named(name: str) -> None:
    found = programs(3, TAPE, CHANGES[name])
    assert (found["kind"], found["step"], found["name"]) == ("program", 3, name)
    assert found["a"] != found["b"], "the two lines that are printed differ"


def test_numbers_of_references_alone() -> None:
    refs = [TAPE.refs[1], TAPE.refs[0], TAPE.refs[2]]
    found = programs(0, TAPE, replace(changed(args=(("t", 1), ("t", 0))), refs=refs))
    assert found["name"] == "numbers of references"
    assert found["a"] != found["b"]
