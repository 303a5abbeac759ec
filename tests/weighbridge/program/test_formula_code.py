"""Lengths of formulas: never below what choosing one could bring in, and little for what was said before."""

from hypothesis import given
from hypothesis import strategies as st

from weighbridge.program.formula_code import FormulaCode

COSINE = "{} + ({} - {}) * 0.5 * (1 + cos(pi * count / 1000))"


def test_a_formula_like_another_costs_what_differs() -> None:
    code = FormulaCode()
    first = code.bits("lr", COSINE.format("1e-5", "3e-4", "1e-5"))
    second = code.bits("lr1", COSINE.format("1e-5", "2.7e-4", "1e-5"))
    again = code.bits("lr", COSINE.format("1e-5", "3e-4", "1e-5"))
    assert again == 1.0 + 1.0  # that it is one of the two, and which
    assert again < second < first / 3


def test_a_number_that_is_new_costs_its_digits() -> None:
    """Else the bits of a model could be spelled by formulas that resemble each other."""
    code = FormulaCode()
    code.bits("w", "0.1")
    for number in range(100, 200):
        digits = f"0.{number * 7919}"
        assert code.bits("w", digits) > 8 * len(digits)


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=4, unique=True))
def test_lengths_are_those_of_a_code(formulas: list[tuple[str, str]]) -> None:
    """Each formula that is new costs something, and the same formulas in the same order cost the same."""
    lengths = [[code.bits(*each) for each in formulas] for code in (FormulaCode(), FormulaCode())]
    assert lengths[0] == lengths[1]
    assert all(length > 0 for length in lengths[0])
