"""What is foreseen of the numbers of a step: counters that it reads, and values that formulas give."""

from __future__ import annotations

import pytest
import torch

from prover.capture.substitution import Substitution
from prover.recording.compile_refusal import CompileError
from prover.recording.known_values import KnownValues, counters, read_ahead
from weighbridge.transcript.formula_terms import Formulas
from weighbridge.transcript.tape import Input, Node, Tape

COUNTER = (0, "f32", (), (), 0)


def tape(*nodes: Node, values: int = 1) -> Tape:
    return Tape(
        inputs=[Input(0, 4, "state", "optimizer.step")],
        refs=[COUNTER, (1, "f32", (3,), (1,), 0)],
        nodes=list(nodes),
        values=values,
    )


ADD = Node("add_.Tensor", (("t", 0), ("v", 0)), {}, (0,))
READ = Node("_local_scalar_dense.default", (("t", 0),), {}, (None,))


def test_a_counter_is_read_ahead() -> None:
    made = tape(ADD, READ, ADD._replace(args=(("t", 0), ("v", 1))), READ, values=2)
    known = KnownValues(made)
    known.observe([1, 2], Substitution(Formulas.parse({})))
    found = counters(made)
    assert read_ahead(found, lambda ref: torch.tensor(41.0), known) == [42.0, 44.0]
    assert read_ahead(found, lambda ref: torch.tensor(2.0**24), known) == [2.0**24, 2.0**24 + 2]  # as float32 adds


def test_a_counter_that_goes_on_by_another_number_is_left_open() -> None:
    made = tape(ADD, READ)
    known = KnownValues(made)
    for number in (1, 2):
        known.observe([number], Substitution(Formulas.parse({})))
    assert read_ahead(counters(made), lambda ref: torch.tensor(41.0), known) is None


@pytest.mark.parametrize(
    "before",
    [
        [Node("mul_.Tensor", (("t", 0), ("v", 0)), {}, (0,))],
        [Node("add_.Tensor", (("t", 0), ("v", 0)), {"alpha": ("v", 0)}, (0,))],
        [Node("add_.Tensor", (("t", 0), ("t", 1)), {}, (0,))],
        [ADD, Node("fill_.Scalar", (("t", 0), ("v", 0)), {}, (0,))],
    ],
)
def test_what_is_no_counter_is_refused(before: list[Node]) -> None:
    with pytest.raises(CompileError, match="no counter of an optimizer"):
        counters(tape(*before, READ))


def test_what_the_step_made_is_no_counter() -> None:
    made = tape(READ)
    made.inputs.clear()
    with pytest.raises(CompileError, match="no counter"):
        counters(made)


def expected(steps: list[float], formulas: dict[str, str], place: str = "mul.Tensor") -> float | int | None:
    """Observes a value in some steps, and returns what it is in the next one; -1 where that is left open."""
    made = tape(Node(place, (("t", 0), ("v", 0)), {}, (1,)))
    known, substitution = KnownValues(made), Substitution(Formulas.parse(formulas))
    for number, value in enumerate(steps, 1):
        substitution.begin(number, [])
        exact = substitution.value((place, 0, 0), value)
        known.observe([exact], substitution)
    if known.refusal() is not None:
        return None
    found = known.expected(substitution.explaining(len(steps) + 1, (), ()), (), substitution)
    return -1 if isinstance(found, int) else found[0]  # type: ignore[return-value]


def test_values_follow_formulas_or_stay() -> None:
    assert expected([0.5, 0.5], {}) == 0.5
    assert expected([1 / 3, 2 / 3], {"lr": "t / 3"}) == 1.0
    assert expected([0.5, 0.25], {}) is None
    assert expected([0.5, 0.25], {"lr": "t / 3"}) is None


def test_a_value_that_stayed_while_a_formula_near_it_moves_is_left_open() -> None:
    assert expected([2.0, 2.0], {"lr": "max(2, t)"}) == -1
    assert expected([2.0, 2.0, 2.0], {"lr": "max(2, t)"}) == 2.0
    assert expected([1.0, 1.0], {"one": "1", "lr": "max(1, t - 1)"}) == -1


def test_formulas_that_part_leave_a_value_open() -> None:
    formulas = {"one": "t / 4", "other": "t / 4 + max(0, t - 2) / 8"}
    assert expected([0.25, 0.5], formulas) == -1
    assert expected([0.25, 0.5, 0.75], formulas) == 1.0
