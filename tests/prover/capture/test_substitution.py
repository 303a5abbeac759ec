"""Which operands get a formula's value, and that a constant near a formula by accident stays one."""

from __future__ import annotations

import math

import pytest

from prover.capture import substitution
from prover.capture.substitution import Substitution
from weighbridge.transcript.formula_terms import Formulas

PLACE = ("mul.Scalar", 3, 0)


def beside(value: float, units: int = 1) -> float:
    for _ in range(units):
        value = math.nextafter(value, math.inf)
    return value


def test_a_value_beside_its_formula_becomes_the_formulas() -> None:
    operands = Substitution(Formulas.parse({"rate": "0.3 ** t"}))
    for t in range(1, 9):
        operands.begin(t, [])
        exact = Formulas.parse({"x": "0.3 ** t"}).evaluate("x", t)[0]
        assert operands.value(PLACE, beside(exact)) == exact
        assert operands.value(("mul.Scalar", 5, 2), exact * 1.001) == exact * 1.001
    assert operands.replaced == 8


def test_a_constant_near_a_formula_in_the_first_step_stays_the_same() -> None:
    """A rate of 0.001 lies near 1 - 0.999 ** t where t is 1, and nowhere else."""
    operands = Substitution(Formulas.parse({"second": "1 - 0.999 ** t"}))
    recorded = []
    for t in range(1, 5):
        operands.begin(t, [])
        recorded.append(operands.value(PLACE, 0.001))
    assert recorded == [1 - 0.999] * 4


def test_the_formula_that_was_near_in_every_step_is_taken() -> None:
    """In step 2 another formula gives the very bits; the one that the operand followed so far decides."""
    near = beside(0.5)
    formulas = Formulas.parse({"ours": "t / 4", "other": repr(near)})
    operands = Substitution(formulas)
    operands.begin(1, [])
    assert operands.value(PLACE, 0.25) == 0.25
    operands.begin(2, [])
    assert operands.value(PLACE, near) == 0.5


def test_an_operand_that_goes_another_way_is_looked_at_anew() -> None:
    operands = Substitution(Formulas.parse({"a": "0.1 * t", "b": "0.7 / t"}))
    for t, program, expected in ((1, 0.1, 0.1), (2, 0.2, 0.2), (3, beside(0.7 / 3), 0.7 / 3), (4, 5.0, 5.0)):
        operands.begin(t, [])
        assert operands.value(PLACE, program) == expected


def test_functions_of_host_values() -> None:
    """Values that are read back later in the step are known when they are needed."""
    operands = Substitution(Formulas.parse({"step": "-0.2 / (1 - 0.9 ** host)"}))
    for t in range(1, 5):
        hosts: list[float] = [7.0]
        operands.begin(t, hosts)
        hosts.append(float(t))
        exact = Formulas.parse({"x": "-0.2 / (1 - 0.9 ** t)"}).evaluate("x", t)[0]
        assert operands.value(PLACE, beside(exact)) == exact


def test_a_step_that_is_computed_again_gets_what_was_recorded() -> None:
    operands = Substitution(Formulas.parse({"rate": "0.3 * t"}))
    operands.begin(5, [], [beside(1.5, 3), 2.0])
    assert operands.value(PLACE, 1.5) == beside(1.5, 3)
    assert operands.value(("mul.Scalar", 3, 1), 9.0) == 9.0
    assert operands.value(("mul.Scalar", 3, 2), 9.0) == 9.0


def test_there_is_one_nan_and_without_formulas_nothing_else_is_replaced() -> None:
    operands = Substitution(Formulas())
    operands.begin(1, [])
    assert operands.value(PLACE, -math.nan) is math.nan
    assert (operands.value(PLACE, 0.1), operands.replaced) == (0.1, 0)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(substitution, "MAX_PLACES", 2)
    operands = Substitution(Formulas.parse({"rate": "0.3 * t"}))
    operands.begin(1, [])
    values = [operands.value(("mul.Scalar", number, 0), beside(0.3)) for number in range(4)]
    assert values == [0.3, 0.3, beside(0.3), beside(0.3)]
