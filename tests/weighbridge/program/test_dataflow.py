"""Where data go in a tape, on tapes written by hand."""

from __future__ import annotations

import pytest

from weighbridge.core.errors import TapeError
from weighbridge.program.dataflow import Overwrite, flow
from weighbridge.transcript.tape import Input, Node, Ref, Tape

FULL: Ref = (0, "f32", (4, 4), (4, 1), 0)
BATCH: Ref = (1, "f32", (4, 4), (4, 1), 0)
OTHER: Ref = (2, "f32", (4, 4), (4, 1), 0)
MADE: Ref = (3, "f32", (4, 4), (4, 1), 0)
W, X, S = 1, 2, 4
RANDOM = 8


def tape(*nodes: Node, refs: tuple[Ref, ...] = (), survivors: tuple[tuple[int, str], ...] = ()) -> Tape:
    """Slot 0 is the state w, slot 1 the batch x, slot 2 the state s; references 0 to 3 are the slots 0 to 3."""
    inputs = [Input(0, 64, "state", "w"), Input(1, 64, "batch", "x"), Input(2, 64, "state", "s")]
    return Tape(
        inputs=inputs, refs=[FULL, BATCH, OTHER, MADE, *refs], nodes=list(nodes), survivors=list(survivors), values=2
    )


def t(index: int) -> tuple[str, int]:
    return ("t", index)


def copy(target: int, source: int) -> Node:
    return Node("copy_.default", (t(target), t(source)), {}, (target,))


def test_an_update_trains() -> None:
    found = flow(
        tape(Node("mul.Tensor", (t(0), t(1)), {}, (3,), ((3, 64),)), Node("sub_.Tensor", (t(0), t(3)), {}, (0,)))
    )
    assert found.reaches == {"w": W | X}
    assert found.trained == {"w"}
    assert found.overwrites == []


def test_a_counter_is_not_trained() -> None:
    found = flow(tape(Node("add_.Tensor", (t(0), ("v", 0)), {}, (0,))))
    assert found.reaches == {"w": W}
    assert found.trained == set()


def test_a_copy_overwrites_unless_it_depends_on_what_was_there() -> None:
    assert flow(tape(copy(0, 1))).overwrites == [Overwrite("w", 0, X, 0)]
    product = Node("mm.default", (t(0), t(1)), {}, (3,), ((3, 64),))
    again = flow(tape(product, copy(0, 3)))
    assert again.overwrites == []
    assert again.trained == {"w"}


def test_what_was_overwritten_first_does_not_come_back() -> None:
    """w = x; y = w * s; w = y: nothing of the old w is left."""
    product = Node("mul.Tensor", (t(0), t(2)), {}, (3,), ((3, 64),))
    found = flow(tape(copy(0, 1), product, copy(0, 3)))
    assert [o.op for o in found.overwrites] == [0, 2]
    assert found.reaches == {"w": X | S}


def test_random_numbers_are_a_source() -> None:
    drawn = Node("normal_.default", (t(0), ("v", 0), ("v", 1)), {}, (0,), (), (0, 0))
    assert flow(tape(drawn)).overwrites == [Overwrite("w", 0, RANDOM, 2)]


LEFT: Ref = (0, "f32", (4, 2), (4, 2), 0)
RIGHT: Ref = (0, "f32", (4, 2), (4, 2), 1)
ALMOST: Ref = (0, "f32", (3, 2), (4, 2), 1)
TURNED: Ref = (0, "f32", (4, 4), (1, 4), 0)
REPEATED: Ref = (0, "f32", (4, 4), (0, 1), 0)


@pytest.mark.parametrize(
    ("refs", "overwritten"),
    [((LEFT,), False), ((LEFT, RIGHT), True), ((LEFT, ALMOST), False), ((TURNED,), True), ((REPEATED,), False)],
)
def test_pieces_overwrite_once_they_cover_everything(refs: tuple[Ref, ...], overwritten: bool) -> None:
    writes = [Node("fill_.Scalar", (t(4 + i), ("v", 0)), {}, (4 + i,)) for i in range(len(refs))]
    found = flow(tape(*writes, refs=refs))
    assert bool(found.overwrites) == overwritten
    assert found.reaches == {"w": 0 if overwritten else W}
    if overwritten:
        assert found.overwrites == [Overwrite("w", len(refs) - 1, 0, len(refs))]


def test_another_storage_takes_the_name() -> None:
    fresh = Node("clone.default", (t(1),), {}, (3,), ((3, 64),))
    dying = tape(fresh, survivors=((3, "w"),))
    dying.frees.append((1, 0))
    assert flow(dying).overwrites == [Overwrite("w", 1, X, 0)]
    kept = Node("mul.Tensor", (t(0), t(1)), {}, (3,), ((3, 64),))
    dying = tape(kept, survivors=((3, "w"),))
    dying.frees.append((1, 0))
    assert flow(dying).overwrites == []
    assert flow(tape(fresh, survivors=((3, "~0/3"),))).overwrites == []


def test_a_view_computes_nothing() -> None:
    assert flow(tape(Node("view.default", (t(0), ("l", (16,))), {}, (0,)))).reaches == {}


def test_forbidden_operations_are_refused() -> None:
    with pytest.raises(TapeError):
        flow(tape(Node("from_file.default", (("s", "x"),), {}, ())))
