"""Of what steps make, only what follows from weights alone counts as made; other state is what the steps were given."""

from __future__ import annotations

import pytest

from weighbridge.program.brought_state import beside_inputs, brought
from weighbridge.program.content import Roles
from weighbridge.program.whole_run import Course, Ran
from weighbridge.transcript.tape import Input, Node, Ref, Tape

ROW = ((64,), (1,), 0)
ROLES = Roles(frozenset({"w", "mean"}), frozenset({"w"}))


def slots(count: int) -> list[Ref]:
    return [(slot, "f32", *ROW) for slot in range(count)]


def copy(to: int, source: int) -> Node:
    return Node("copy_.default", (("t", to), ("t", source)), {}, (to,), ())


def exchange(to: int, source: int) -> Node:
    outs, ins = ("l", (("t", to),)), ("l", (("t", source),))
    return Node("weighbridge::all_reduce.default", (outs, ins, "sum", ("l", (0, 1)), 0, 0), {}, (), ())


def found(tape: Tape, course: Course | None = None) -> set[str]:
    course = course or Course([Ran(0, b"init", True), Ran(1, b"step", False)])
    return brought(course, {b"init": Tape(), b"step": tape}.__getitem__, ROLES, 2)


STATE = [Input(0, 256, "state", "w"), Input(1, 256, "state", "mean"), Input(2, 256, "state", "copy")]


@pytest.mark.parametrize("way", ["batch to statistic", "batch to weights", "message to weights", "message to state"])
def test_what_follows_from_weights_alone_is_made(way: str) -> None:
    """A message or a batch that goes into weights is training's business; beside them it is what the step was given."""
    given = Input(3, 256, "batch", "x")
    nodes = {
        "batch to statistic": [Node("add_.Tensor", (("t", 1), ("t", 3)), {}, (1,), ()), copy(2, 1)],
        "batch to weights": [Node("add_.Tensor", (("t", 0), ("t", 3)), {}, (0,), ()), copy(2, 0)],
        "message to weights": [exchange(0, 3), copy(2, 0)],
        "message to state": [exchange(1, 0), copy(2, 1)],
    }[way]
    tape = Tape(inputs=[*STATE, given], refs=slots(4), nodes=nodes)
    assert found(tape) == ({"mean", "copy"} if way in ("batch to statistic", "message to state") else set())


def test_weights_in_another_storage_are_weights() -> None:
    """`p.data = p - gradient`, and an average of that in the same step."""
    tape = Tape(
        inputs=[*STATE[:1], STATE[2], Input(3, 256, "batch", "x")],
        refs=slots(5),
        nodes=[Node("add.Tensor", (("t", 0), ("t", 3)), {}, (4,), ((4, 256),)), copy(2, 4)],
        frees=[(2, 0)],
        survivors=[(4, "w")],
    )
    assert found(tape) == set()


@pytest.mark.parametrize(("source", "expected"), [("w", set()), ("mean", {"mean", "copy"}), (None, {"mean", "copy"})])
def test_state_of_an_earlier_step_is_what_it_was(source: str | None, expected: set[str]) -> None:
    """An average that is put back is still one; the same program may be given something else."""
    feeds = Tape(
        inputs=[STATE[1], Input(3, 256, "batch", "x")],
        refs=slots(4),
        nodes=[Node("add_.Tensor", (("t", 1), ("t", 3)), {}, (1,), ())],
    )
    back = Tape(inputs=[STATE[2], Input(3, 256, "free", "f")], refs=slots(4), nodes=[copy(2, 3)])
    tapes = {b"init": Tape(), b"feeds": feeds, b"back": back}
    course = Course([Ran(0, b"init", True), Ran(1, b"feeds", False), Ran(2, b"back", False), Ran(3, b"back", False)])
    course.returned = {(3, "f"): (2, "w")}
    if source is not None:
        course.returned[2, "f"] = (2, source)
    assert brought(course, tapes.__getitem__, ROLES, 4) == {"mean"} | expected


def test_what_reaches_weights_is_not_beside_them() -> None:
    tape = Tape(
        inputs=[Input(3, 256, "free", "f"), Input(4, 256, "free", "g")],
        refs=slots(5),
        nodes=[
            Node("clone.default", (("t", 3),), {}, (0,), ((0, 256),)),
            Node("clone.default", (("t", 4),), {}, (1,), ((1, 256),)),
        ],
        survivors=[(0, "w"), (1, "mean")],
    )
    assert beside_inputs(tape, lambda name: name != "w") == {"g"}
