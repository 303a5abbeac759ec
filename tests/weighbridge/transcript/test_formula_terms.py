"""The language of formulas: what it means, what it refuses, how close a value has to be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core.errors import TapeError
from weighbridge.transcript.formula_arithmetic import agrees
from weighbridge.transcript.formula_terms import MAX_FORMULAS, MAX_LENGTH, Formulas


def value(text: str, t: int = 1, hosts: tuple[float, ...] = (), index: int = 0) -> float:
    return Formulas.parse({"x": text}).evaluate("x", t, hosts, index)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7.0), ("(1 + 2) * 3", 9.0), ("8 / 4 / 2", 1.0), ("7 - 2 - 1", 4.0), ("2 ** 3 ** 2", 512.0),
        ("-2 ** 2", -4.0), ("2 ** -1", 0.5), ("--3", 3.0), ("- -3 + +1", 4.0), (".5e1", 5.0), ("1.", 1.0),
        ("min(3, t, 2)", 2.0), ("max(3, t)", 10.0), ("floor(t / 4)", 2.0), ("sqrt(16)", 4.0), ("exp(0)", 1.0),
        ("log(1)", 0.0), ("cos(pi)", -1.0), ("1 if t < 10 else 2", 2.0), ("1 if t <= 10 else 2", 1.0),
        ("1 if t > 9 else 2 if t > 8 else 3", 1.0), ("(t >= 10) * 5", 5.0), ("t == 10", 1.0), ("t != 10", 0.0),
    ],
)  # fmt: skip
def test_what_formulas_mean(text: str, expected: float) -> None:
    assert value(text, 10) == expected


def test_earlier_names_and_host_values() -> None:
    formulas = Formulas.parse([["lr", "0.1 * min(1, t / 10)"], ["step", "-lr / host"], ["pair", "host1 - host"]])
    assert formulas.evaluate("step", 5, [4.0, 2.0], 1)[0] == -0.05 / 2
    assert formulas.evaluate("pair", 5, [4.0, 7.0])[0] == 3.0
    assert math.isnan(formulas.evaluate("pair", 5, [4.0, 7.0], 1)[0])
    assert [f.hosts for f in formulas.items.values()] == [False, True, True]


@pytest.mark.parametrize(
    "text", ["1 / 0", "log(0)", "sqrt(-1)", "(0 - 8) ** 0.5", "10 ** 400", "exp(1000)", "1e308 * 10"]
)
def test_what_is_undefined_explains_nothing(text: str) -> None:
    found = Formulas.parse({"x": text}).evaluate("x", 1)
    assert math.isnan(found[0])
    assert not any(agrees(v, found) for v in (0.0, 1.0, math.inf, math.nan))


@pytest.mark.parametrize(
    "text",
    [
        "", "(", "1 +", "1 1", "t(3)", "min(1)", "sqrt 4", "sqrt(1, 2)", "sqrt", "y", "x", "t if", "1 if t", "a.b",
        "__import__('os')", "t[0]", "lambda: 1", "1 < 2 < 3", "t = 1", "1e999", "1_000", "\u0663", "t; t", "'a'", "T",
        "(" * 100 + "1" + ")" * 100, "-" + "(" * 41 + "1" + ")" * 41, "1" + "+1" * (MAX_LENGTH // 2), "2" + "**2" * 60,
    ],
)  # fmt: skip
def test_what_is_not_in_the_language(text: str) -> None:
    with pytest.raises(TapeError) as caught:
        Formulas.parse({"x": text})
    assert caught.value.reason == "tape.formula"


@pytest.mark.parametrize(
    "declared",
    [
        None, 3, "x", [["x"]], [["x", 1]], [[b"x", "1"]], [["x", "1"], ["x", "2"]], [["t", "1"]], [["pi", "1"]],
        [["min", "1"]], [["X", "1"]], [["a b", "1"]], [["", "1"]], [["a" * 41, "1"]], [["b", "a"], ["a", "1"]],
        [[f"a{i}", "1"] for i in range(MAX_FORMULAS + 1)], [[f"a{i}", "t" + "+t" * 200] for i in range(20)],
    ],
)  # fmt: skip
def test_what_is_no_list_of_formulas(declared: object) -> None:
    with pytest.raises(TapeError):
        Formulas.parse(declared)


def test_values_of_another_evaluation_agree_and_others_do_not() -> None:
    """A bias correction of step 2 loses 9 bits to cancellation: its tolerance is wider by as many, and no more."""
    found = Formulas.parse({"x": "1 - 0.999 ** t"}).evaluate("x", 2)
    assert agrees(-math.expm1(2 * math.log(0.999)), found)
    assert not agrees(found[0] * (1 + 1e-11), found)
    exact = Formulas.parse({"x": "0.1"}).evaluate("x", 2)
    assert agrees(math.nextafter(0.1, 1), exact)
    assert not agrees(0.1 + 2e-16, exact)
    assert agrees(0.0, (0.0, 0.0))
    assert not agrees(5e-324, (0.0, 0.0))


def test_a_formula_cannot_be_made_to_agree_with_everything() -> None:
    """An error bound that was blown up on purpose buys a millionth."""
    for text in ("(1e20 + t) - 1e20", "drift(drift(drift(t)))", "drift((1e30 + t) - 1e30 + 7)"):
        found = Formulas.parse({"x": text}).evaluate("x", 10**6)
        assert not agrees(found[0] * 1.00001 + 1e-300, found)


def test_drift_allows_for_a_recurrence() -> None:
    """PyTorch's schedules compute each rate from the one before, so that its rounding errors add up."""
    drifting, exact = Formulas.parse({"x": "drift(0.9999 ** t)"}), Formulas.parse({"x": "0.9999 ** t"})
    rate, missed = 1.0, 0
    for t in range(1, 30000):
        rate *= 0.9999
        assert agrees(rate, drifting.evaluate("x", t)), t
        missed += not agrees(rate, exact.evaluate("x", t))
    assert missed


@given(st.text(alphabet="t0123456789.e+-*/()<>=, ifelshomnaxpqrtu_\n", max_size=60))
def test_any_text_is_a_formula_or_is_refused(text: str) -> None:
    """Hostile text raises only WeighbridgeError; what parses evaluates to a number, and survives the draft.

    Round trip: `Formulas.parse(f.to_list()).to_list() == f.to_list()`.
    """
    try:
        formulas = Formulas.parse({"x": text})
    except TapeError:
        return
    number, error = formulas.evaluate("x", 3, [2.0, 5.0])
    assert math.isnan(number) or (math.isfinite(number) and error >= 0)
    assert Formulas.parse(formulas.to_list()).to_list() == formulas.to_list()


@given(
    st.recursive(
        st.integers(0, 20).map(str) | st.just("t"),
        lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(
            lambda p: f"({p[0]} {p[1]} {p[2]})"
        ),
        max_leaves=8,
    )
)
def test_arithmetic_is_that_of_python(text: str) -> None:
    assert value(text, 7) == float(eval(text, {"t": 7}))
