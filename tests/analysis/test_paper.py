"""The paper reproduced, and each of its errata demonstrated (the numbers E1 to E7 are those of docs/paper.md)."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.detection import detection_probability_eq1, involved_fraction, samples_needed, samples_needed_linearised
from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.paper import CHIP_FLOPS_PER_DAY, MODELS, figure_2, footnote_5, printed_text, table_1
from analysis.reliability import with_soundness_error
from analysis.spread import lemma_1, lemma_1_slope
from analysis.stretch import largest_fraction, stretch_ratio

A = CHIP_FLOPS_PER_DAY
DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")

PRINTED = """
GPT-3           | 3.64e3 | 10     | 243 | 2.43e4 | 2.43e6
Chinchilla      | 6.67e3 | 19     | 132 | 1.33e4 | 1.33e6
PaLM            | 2.96e4 | 82     | 29  | 2.98e3 | 2.99e5
Chinchilla-280B | 1.15e5 | 314    | 7   | 771    | 7.72e4
Chinchilla-1T   | 1.47e6 | 4.03e3 | -   | 60     | 6.02e3
Chinchilla-10T  | 1.5e8  | 4.12e5 | -   | -      | 58
"""
EXACT = {
    "GPT-3": [229.08, 2.4323e4, 2.4337e6],
    "Chinchilla": [118.11, 1.3253e4, 1.3267e6],
    "PaLM": [10.047, 2971.1, 2.9850e5],
    "Chinchilla-280B": [None, 757.8, 7.7177e4],
    "Chinchilla-1T": [None, 44.71, 6003.2],
    "Chinchilla-10T": [None, None, 43.28],
}


def table_arguments(flops: float, chips: int) -> dict[str, float]:
    return {
        "flops_threshold": flops, "chip_flops_per_day": A, "chips": chips, "period_days": 30.0,
        "snapshot_rate_per_day": 0.1,
    }  # fmt: skip


def test_table_1_has_the_27_printed_numbers_and_3_dashes() -> None:
    expected = [[cell.strip() for cell in line.split("|")] for line in PRINTED.strip().splitlines()]
    found = [
        [row.model, *(printed_text(value) for value in (row.chip_days, row.chips_one_year, *row.samples.values()))]
        for row in table_1("printed")
    ]
    assert found == expected
    cells = [cell for row in found for cell in row[1:]]
    assert (len(cells) - cells.count("-"), cells.count("-")) == (27, 3)


def test_table_1_by_equation_1() -> None:
    for row in table_1("exact"):
        for value, expected in zip(row.samples.values(), EXACT[row.model], strict=True):
            assert (value is None) if expected is None else value == pytest.approx(expected, rel=2e-4)


def test_table_1_over_whole_chips_is_within_a_sample_a_period_of_equation_1() -> None:
    for exact, whole in zip(table_1("exact"), table_1("hypergeometric"), strict=True):
        for real, counted in zip(exact.samples.values(), whole.samples.values(), strict=True):
            assert (real is None) == (counted is None)
            if real is not None and counted is not None:
                assert counted * 30 / 365 == pytest.approx(round(counted * 30 / 365), abs=1e-9)
                assert counted <= math.ceil(real * 30 / 365) * 365 / 30 + 1e-9
                assert counted >= 0.97 * real


def test_there_is_no_other_mode() -> None:
    with pytest.raises(DetectionDomainError, match="printed, exact or hypergeometric"):
        table_1("guessed")  # type: ignore[arg-type]


def test_footnote_5() -> None:
    note = footnote_5()
    assert note.linearised == pytest.approx(231_573, abs=1)
    assert note.inspectors == 232
    assert round(note.exact, -3) == 232_000
    assert note.as_stated == pytest.approx(229_243, abs=1)
    assert round(note.as_stated, -3) == 229_000, "the stated 10^25 FLOPs do not give the stated 232,000"


def test_figure_2() -> None:
    stretches, fractions = [2, 5, 10, 20, 50, 100], [0.01, 0.05, 0.1, 0.15, 0.2]
    expected = [
        [0.9994, 0.9990, 0.9988, 0.9988, 0.9987, 0.9987],
        [0.9967, 0.9947, 0.9940, 0.9937, 0.9935, 0.9934],
        [0.9931, 0.9889, 0.9876, 0.9869, 0.9865, 0.9863],
        [0.9891, 0.9827, 0.9806, 0.9795, 0.9789, 0.9786],
        [0.9848, 0.9759, 0.9729, 0.9715, 0.9706, 0.9703],
    ]
    assert figure_2(stretches=stretches, involved_fractions=fractions) == pytest.approx(np.array(expected), abs=6e-5)
    assert figure_2(stretches=np.arange(1, 101), involved_fractions=np.linspace(0.001, 0.2, 50)).min() > 0.95


def test_e1_the_table_is_linearised_and_that_is_never_too_few_samples() -> None:
    for model in MODELS:
        for chips in (10**3, 10**5, 10**7):
            arguments = table_arguments(model.flops, chips)
            linear = float(samples_needed_linearised(probability=0.9, **arguments))
            try:
                exact = float(samples_needed(probability=0.9, run_days=30.0, **arguments))
            except InfeasibleError:
                continue
            fraction = model.flops / A / 30 / chips
            assert linear > exact
            assert linear / exact < 1.01 or fraction > 0.01
    assert pytest.approx(2.9, abs=0.02) == 29 / 10.047  # PaLM on 1000 chips: what is printed is 2.9 times too many


def test_e1_the_printed_7_lies_outside_equation_1() -> None:
    with pytest.raises(InfeasibleError, match=r"3820 chips, or 114\.6 days"):
        samples_needed(probability=0.9, run_days=30.0, **table_arguments(9.9e24, 1000))


@given(st.integers(1, 50), st.integers(1, 10), st.floats(0.001, 0.5))
def test_e2_the_printed_exponent_belongs_to_the_miss(samples: int, periods: int, hit: float) -> None:
    """Printed: p = (1 - p_n)^ceil(T/T_m). That falls with every period; the chance of detection cannot."""
    missed = (1 - hit) ** samples
    printed, right = (1 - missed) ** periods, 1 - missed**periods
    assert printed <= right
    if periods > 1:
        assert printed < 1 - missed < right or missed < 1e-12
    rate, days = 50.0, 30.0  # snapshots are certain, so that equation 1 has q = b
    eq1 = detection_probability_eq1(
        samples=samples, flops_threshold=hit * 1000 * days * periods, chip_flops_per_day=1.0, chips=1000,
        run_days=days * periods, period_days=days, snapshot_rate_per_day=rate,
    )  # fmt: skip
    assert eq1 == pytest.approx(right, rel=1e-9)


def test_e3_the_sample_size_is_a_lower_limit() -> None:
    arguments = table_arguments(5.76e23, 10**5)
    needed = float(samples_needed(probability=0.9, run_days=30.0, **arguments))
    fewer = detection_probability_eq1(samples=math.floor(needed), run_days=30.0, **arguments)
    more = detection_probability_eq1(samples=math.ceil(needed), run_days=30.0, **arguments)
    assert fewer < 0.9 <= more


def test_e4_the_collusion_sentence_divides_by_the_period_instead_of_the_run() -> None:
    """H/(a T_m C) is the involved fraction only if the run takes one period; else it is T/T_m times too large."""
    b = float(involved_fraction(flops_threshold=5.76e23, chip_flops_per_day=A, chips=10**5, run_days=90.0))
    printed = 5.76e23 / (A * 30.0 * 10**5)
    assert printed == pytest.approx(3 * b)


def test_e5_e6_a_soundness_error_lowers_p_a_little() -> None:
    """Printed: certain "with probability at least 1 - p - delta_2". With p = 0.9 that would be next to nothing."""
    p, delta = 0.9, 0.01
    assert 1 - p - delta == pytest.approx(0.09)
    kept = float(with_soundness_error(probability=p, soundness_error=delta))
    assert p - delta <= kept == pytest.approx(0.891)
    # E5: read literally, definition 1 lets spoofs pass with probability up to 1 - delta_2; then p is worth nothing.
    assert with_soundness_error(probability=p, soundness_error=1 - delta) == pytest.approx(0.009)


def test_e7_the_derivative_without_ln_b_is_wrong_and_the_lemma_right() -> None:
    g, b, step = 3.0, math.exp(-3.0), 1e-6
    numerical = float(lemma_1(ratio=g + step, base=b) - lemma_1(ratio=g - step, base=b)) / (2 * step)
    assert lemma_1_slope(ratio=g, base=b) == pytest.approx(numerical, rel=1e-6)
    as_printed = 1 - b ** (1 / g) + b ** (1 / g) / g
    assert abs(as_printed - numerical) > 0.4
    ratios, bases = np.meshgrid(np.linspace(1, 50, 200), np.linspace(0.001, 0.999, 200))
    assert lemma_1(ratio=ratios, base=bases).min() >= -1e-12


def test_figure_2s_five_percent_does_not_hold_for_almost_all_b() -> None:
    assert largest_fraction(probability=0.9, stretch=100, loss=0.05) == pytest.approx(0.307, abs=1e-3)
    assert stretch_ratio(probability=0.9, involved_fraction=[0.5, 0.9], stretch=100) == pytest.approx(
        np.array([0.901, 0.661]), abs=1e-3
    )


def test_the_page_lists_every_erratum_with_a_test_that_exists() -> None:
    for number in range(1, 10):
        assert f"| E{number} |" in DOCUMENT
    named = set(re.findall(r"`(test_\w+)`", DOCUMENT))
    demonstrations = {name for name in globals() if re.match(r"test_(e\d|figure_2s)", name)}
    assert named == demonstrations
