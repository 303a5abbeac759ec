"""The detection probability against the paper's numbers, exact fractions and a simulation."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from analysis.detection import (
    detection_probability_eq1,
    detection_probability_hypergeometric,
    involved_chips,
    samples_needed,
)
from analysis.domain import DetectionDomainError

A = 8.64e19  # FLOP per day of one H100 at 10^15 FLOP/s, as in the paper's table 1


def plan(flops: float, chips: int, **changes: Any) -> dict[str, Any]:
    base = {
        "flops_threshold": flops,
        "chip_flops_per_day": A,
        "chips": chips,
        "run_days": 30.0,
        "period_days": 30.0,
        "snapshot_rate_per_day": 0.1,
    }
    return base | changes


def without_period(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != "period_days"}


# Samples a year by equation 1 exactly (not linearised), for table 1's models: H, C, samples a year.
EQUATION_1 = [
    (3.14e23, 10**3, 229.1),
    (3.14e23, 10**5, 2.432e4),
    (3.14e23, 10**7, 2.434e6),
    (5.76e23, 10**3, 118.1),
    (5.76e23, 10**5, 1.325e4),
    (2.56e24, 10**3, 10.05),
    (2.56e24, 10**5, 2971),
    (9.9e24, 10**5, 757.8),
    (1.27e26, 10**5, 44.7),
    (1.27e26, 10**7, 6003),
    (1.3e28, 10**7, 43.3),
]
# Table 1 as printed; it uses the first-order form, which equation 1 approaches where few chips are involved.
PRINTED = [(3.14e23, 10**5, 2.43e4), (3.14e23, 10**7, 2.43e6), (5.76e23, 10**7, 1.33e6), (9.9e24, 10**7, 7.72e4)]


@pytest.mark.parametrize(("flops", "chips", "yearly"), EQUATION_1)
def test_samples_a_year_by_equation_1(flops: float, chips: int, yearly: float) -> None:
    needed = samples_needed(probability=0.9, **plan(flops, chips))
    assert needed * 365 / 30 == pytest.approx(yearly, rel=1e-3)


@pytest.mark.parametrize(("flops", "chips", "yearly"), PRINTED)
def test_table_1_as_printed_where_few_chips_are_involved(flops: float, chips: int, yearly: float) -> None:
    assert samples_needed(probability=0.9, **plan(flops, chips)) * 365 / 30 == pytest.approx(yearly, rel=5e-3)


def test_footnote_5_inspectors() -> None:
    needed = samples_needed(probability=0.9, **plan(9.9e24, 10**7, chip_flops_per_day=3 * A))
    assert needed * 365 / 30 == pytest.approx(231_573, rel=1e-3)


def test_chinchilla_at_ten_samples_on_whole_chips() -> None:
    arguments = plan(223 * A * 30, 1000)  # 5.76e23 FLOPs need 222.2 chips
    assert detection_probability_eq1(samples=10, **arguments) == pytest.approx(0.9076, abs=1e-4)
    assert detection_probability_hypergeometric(samples=10, **without_period(arguments)) == pytest.approx(
        0.9085, abs=5e-4
    )


@given(
    st.floats(0.01, 0.99),
    st.floats(1e20, 1e24),
    st.integers(400, 10**7),
    st.sampled_from([30.0, 60.0, 90.0]),
    st.floats(1e-3, 10),
)
def test_samples_needed_inverts_equation_1(p: float, flops: float, chips: int, days: float, rate: float) -> None:
    arguments = plan(flops, chips, run_days=days, snapshot_rate_per_day=rate)
    whole = math.ceil(samples_needed(probability=p, **arguments))
    assume(whole <= chips)
    assert detection_probability_eq1(samples=whole, **arguments) >= p * (1 - 1e-9)
    if whole > 1:
        assert detection_probability_eq1(samples=whole - 1, **arguments) <= p * (1 + 1e-9)


@given(st.integers(1, 40), st.data())
def test_hypergeometric_equals_exact_fractions(chips: int, data: st.DataObject) -> None:
    involved = data.draw(st.integers(1, chips))
    samples = data.draw(st.integers(0, chips))
    rate = data.draw(st.floats(1e-3, 1.0))
    found = detection_probability_hypergeometric(
        samples=samples,
        flops_threshold=involved * 100.0,
        chip_flops_per_day=10.0,
        chips=chips,
        run_days=10.0,
        snapshot_rate_per_day=rate,
    )
    miss = Fraction(math.exp(-rate * 10.0))
    exact = sum(
        Fraction(math.comb(involved, j) * math.comb(chips - involved, samples - j), math.comb(chips, samples)) * miss**j
        for j in range(min(involved, samples) + 1)
        if samples - j <= chips - involved
    )
    assert found == pytest.approx(float(1 - exact), abs=1e-10)


def test_sampling_every_chip_leaves_only_the_chance_of_no_snapshot() -> None:
    found = detection_probability_hypergeometric(
        samples=4, flops_threshold=150.0, chip_flops_per_day=10.0, chips=4, run_days=10.0, snapshot_rate_per_day=0.2
    )
    assert found == pytest.approx(1 - math.exp(-0.2 * 10) ** 2, rel=1e-12)


def test_hypergeometric_agrees_with_a_simulation() -> None:
    chips, samples, rate, days = 50, 6, 0.05, 30.0
    arguments = without_period(plan(7 * A * days, chips, snapshot_rate_per_day=rate))
    assert involved_chips(flops_threshold=7 * A * days, chip_flops_per_day=A, chips=chips, run_days=days) == 7
    generator = np.random.Generator(np.random.Philox(5))
    rounds = 20_000
    drawn = generator.permuted(np.tile(np.arange(chips), (rounds, 1)), axis=1)[:, :samples]
    has_snapshot = generator.random((rounds, chips)) < 1 - math.exp(-rate * days)
    has_snapshot[:, 7:] = False
    seen = np.take_along_axis(has_snapshot, drawn, axis=1).any(axis=1).mean()
    expected = detection_probability_hypergeometric(samples=samples, **arguments)
    assert seen == pytest.approx(expected, abs=5 * math.sqrt(0.25 / rounds))


def test_without_replacement_is_never_worse_for_whole_chips() -> None:
    for samples in range(1, 51):
        arguments = plan(7 * A * 30, 50)
        with_replacement = detection_probability_eq1(samples=samples, **arguments)
        assert (
            detection_probability_hypergeometric(samples=samples, **without_period(arguments))
            >= with_replacement - 1e-12
        )


def test_a_large_fleet_is_computed_in_a_moment() -> None:
    arguments = plan(1.3e28, 10**7)
    exact = detection_probability_hypergeometric(samples=4, **without_period(arguments))
    assert exact == pytest.approx(detection_probability_eq1(samples=4, **arguments), abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"flops_threshold": 9.9e24, "chips": 1000}, "no run of"),
        ({"snapshot_rate_per_day": 1e9, "flops_threshold": A * 30, "chips": 1, "samples": 1}, "q >= 1"),
        ({"run_days": 10.0}, "period_days"),
        ({"chips": 0}, "chips"),
        ({"samples": 1001}, "more different chips"),
        ({"samples": "three"}, "samples must be a number"),
        ({"samples": [1, 2], "chips": [1000, 1000, 1000]}, "broadcast"),
        ({"chips": 2.5}, "chips"),
        ({"samples": -1}, "samples"),
        ({"flops_threshold": math.nan}, "flops_threshold"),
        ({"flops_threshold": 1e-320}, "told from zero"),
        ({"chip_flops_per_day": 0.0}, "chip_flops_per_day"),
        ({"snapshot_rate_per_day": -0.1}, "snapshot_rate_per_day"),
        ({"period_days": math.inf}, "period_days"),
    ],
)
def test_domain_errors_are_explicit(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DetectionDomainError, match=says):
        detection_probability_eq1(**({"samples": 3} | plan(5.76e23, 1000) | changes))


def test_other_domain_errors() -> None:
    with pytest.raises(DetectionDomainError, match="cannot be sampled"):
        detection_probability_hypergeometric(samples=1001, **without_period(plan(5.76e23, 1000)))
    for p in (0.0, 1.0, math.nan):
        with pytest.raises(DetectionDomainError, match="probability"):
            samples_needed(probability=p, **plan(5.76e23, 1000))
