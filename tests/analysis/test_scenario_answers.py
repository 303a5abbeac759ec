"""What an analyst is told: agreement with the formulas, each number by hand, and evasions that work are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import costs, detection, evasion, periods, scenario_answers, smallest_run
from analysis.domain import InfeasibleError
from analysis.scenario import Scenario, load, paper, parse

EXAMPLES = Path(__file__).parents[2] / "analysis" / "scenarios"
SMALL = parse("""
title = "Small"
[fleet]
chips = 50
chip-flops = 1e15
[violation]
flops = 1.2e22
run-days = 20
[inspection]
period-days = 10
rate = 0.2
samples = 6
missed = 0.25
""")


@settings(deadline=None, max_examples=40)
@given(samples=st.integers(0, 60), involved=st.integers(0, 60), days=st.floats(1, 100), rate=st.floats(0.01, 3))
def test_inspections_that_miss_nothing_agree_with_the_formula(
    samples: int, involved: int, days: float, rate: float
) -> None:
    scenario = replace(SMALL, chips=60.0, rate=rate, missed=0.0)
    expected = periods.seen_in_periods(
        samples=samples, involved=involved, chips=60, run_days=days, period_days=10, snapshot_rate_per_day=rate
    )
    assert float(evasion.seen(scenario, samples=samples, involved=involved, days=days)) == pytest.approx(
        float(expected)
    )


def test_what_inspections_miss_is_what_a_simulation_misses() -> None:
    """Chips, draws and misses made at random; runs of one period, where no approximation is left."""
    random = np.random.default_rng(5)
    scenario, trials, hits = replace(SMALL, run_days=10.0), 20_000, 0
    held = 1 - np.exp(-0.2 * 10)
    for _ in range(trials):
        drawn = random.permutation(50)[:6]
        hits += bool(np.any((drawn < 7) & (random.random(6) < held) & (random.random(6) >= 0.25)))
    p = float(evasion.seen(scenario, samples=6, involved=7, days=10.0))
    assert abs(hits / trials - p) < 4 * np.sqrt(p * (1 - p) / trials)


def test_the_papers_middle_cell() -> None:
    found = scenario_answers.answer(paper())
    assert (found.involved, found.needed, found.samples) == (223, 1080, 1080)
    fleet = paper().fleet()
    shared = {name: fleet[name] for name in fleet if name != "period_days"}
    assert found.probability == float(detection.detection_probability_hypergeometric(samples=1080, **shared))
    assert found.probability >= 0.9 > float(detection.detection_probability_hypergeometric(samples=1079, **shared))
    assert found.by_method["hypergeometric"] == pytest.approx(found.probability)
    assert found.by_method["eq1"] == pytest.approx(0.898014, abs=1e-6)
    assert found.per_year == pytest.approx(1080 * 365 / 30)
    assert found.inspectors == 14
    chips = smallest_run.smallest_run_chips(
        samples=1080, probability=0.9, chips=1e5, run_days=30, period_days=30, snapshot_rate_per_day=0.1
    )
    assert found.smallest_chips == int(chips)
    assert found.smallest_flops == pytest.approx(float(chips) * 8.64e19 * 30)


def test_a_planned_number_of_samples_is_kept_and_what_would_do_is_said() -> None:
    found = scenario_answers.answer(SMALL)
    assert found.samples == 6
    assert found.probability < 0.9
    assert found.needed is not None
    assert evasion.seen(SMALL, samples=found.needed, involved=found.involved, days=20.0) >= 0.9
    assert evasion.seen(SMALL, samples=found.needed - 1, involved=found.involved, days=20.0) < 0.9
    assert scenario_answers.samples_used(replace(SMALL, samples=None)) == found.needed
    assert scenario_answers.samples_used(SMALL) == 6


def test_costs_by_hand() -> None:
    scenario = load(EXAMPLES / "treaty.toml")
    found = scenario_answers.answer(scenario)
    assert found.sampling_cost == pytest.approx(1200 * 365 / 30 * 1000)
    assert found.stalled == pytest.approx(0.1 * 2 / 86400)
    assert found.stall_cost == pytest.approx(365 * 1e7 * 0.1 * 2 / 86400 * 48)
    assert found.kept_bytes == pytest.approx(1e7 * 0.1 * 1200 * 400)
    assert found.storage_cost == pytest.approx(1e7 * 0.1 * 1200 * 400 * 0.02 * 12 / 1e9)
    assert found.replayed == pytest.approx(1200 * 3 * 7000 / 1e7 * 0.1 * 30 * 250.5 / 500_000 / 7000)
    assert found.plan is not None
    spent = found.plan.sampling_cost + found.plan.stall_cost + found.plan.storage_cost
    assert spent <= scenario.budget * (1 + 1e-9)  # type: ignore[operator]
    assert found.inspectors == int(costs.inspectors_needed(samples_per_year=found.per_year))


def test_proofs_take_what_their_figures_say() -> None:
    by_name = {each.system.name: each for each in scenario_answers.proofs(1e25, 90.0)}
    assert by_name["zkDL"].seconds == pytest.approx(1e25 / 3.84e9)
    assert by_name["zkDL"].machines == pytest.approx(1e25 / 3.84e9 / (90 * 86400), rel=1e-6)
    assert "zkLLM" not in by_name  # its work cannot be counted


def test_a_prover_with_unmonitored_chips_evades_by_taking_longer() -> None:
    """A run that is caught in time T, and not in 10 T; without unmonitored chips it is caught in both."""
    scenario = replace(SMALL, unmonitored_chips=2.0, samples=30.0)
    stated, longer = (evasion.way(scenario, 30, days=days) for days in (20.0, 200.0))
    assert stated.probability is not None
    assert stated.probability > 0.6
    assert (longer.chips, longer.probability) == (0, 0.0)
    monitored = evasion.way(replace(scenario, unmonitored_chips=0.0), 30, days=200.0).probability
    assert monitored is not None
    assert monitored > 0.6


@pytest.mark.parametrize("name", ["chinchilla", "company", "treaty"])
def test_formula_and_simulated_fleets_agree(name: str) -> None:
    """Every way of every example, intervals widened to what one in a million exceeds."""
    scenario = load(EXAMPLES / f"{name}.toml")
    ways = evasion.ways(scenario, scenario_answers.samples_used(scenario))
    found = [way for way in ways if way.simulated is not None]
    assert len(found) >= 2
    for way in found:
        assert way.probability is not None
        assert way.simulated is not None
        p, reach = way.probability, 5 * np.sqrt(way.probability * (1 - way.probability) / evasion.TRIALS)
        assert way.simulated.low <= way.simulated.value <= way.simulated.high
        assert abs(way.simulated.value - p) <= reach + 2e-3, way  # the rest: periods are not quite independent


@pytest.mark.parametrize(
    "name", ["company", *(pytest.param(each, marks=pytest.mark.soak) for each in ("chinchilla", "treaty"))]
)
def test_the_search_finds_nothing_worse_for_the_verifier_overlooked_by_it(name: str) -> None:
    scenario = load(EXAMPLES / f"{name}.toml")
    samples = scenario_answers.samples_used(scenario)
    found = evasion.worst(scenario, samples)
    lengths = [scenario.run_days * factor for factor in (0.5, 1, *evasion.STRETCHES)]
    probabilities = [evasion.way(scenario, samples, days=days).probability for days in lengths]
    assert found.probability <= min(each for each in probabilities if each is not None) + 1e-6
    if scenario.unmonitored_chips:
        assert found.probability == 0.0
        assert found.days > scenario.run_days
    else:
        assert probabilities[1] is not None
        assert found.probability > 0.97 * probabilities[1]  # appendix C: hiding gains little


def test_what_does_not_fit_or_is_not_monitored_is_not_simulated() -> None:
    assert evasion.simulated(SMALL, 6, days=1.0) is None
    assert evasion.simulated(replace(SMALL, unmonitored_chips=7.0), 6, days=20.0) is None
    assert evasion.simulated(SMALL, 6, days=20.0) is not None


def test_spreading_over_more_chips_than_there_are_does_not_fit() -> None:
    way = evasion.way(SMALL, 6, days=1.0)
    assert way.chips == 139
    assert way.probability is None
    assert evasion.way(SMALL, 6, days=20.0).chips == 7


def test_longer_and_shorter_runs_agree_with_theorem_1() -> None:
    """Chips used for a shorter time, inspected after the run: never seen less often."""
    for scenario in (paper(), load(EXAMPLES / "company.toml")):
        samples, days = scenario_answers.samples_used(scenario), scenario.period_days
        stated = evasion.way(scenario, samples, days=days).probability
        shorter = [evasion.way(scenario, samples, days=days / factor).probability for factor in (1.5, 2, 5, 10, 20)]
        assert stated is not None
        assert shorter
        assert all(each is None or each >= stated - 1e-3 for each in shorter)


def test_nothing_is_enough() -> None:
    blind = replace(SMALL, missed=1.0)
    found = scenario_answers.answer(blind)
    assert (found.probability, found.needed, found.smallest_chips, found.worst.probability) == (0.0, None, None, 0.0)
    with pytest.raises(InfeasibleError, match=r"inspection\.missed"):
        scenario_answers.answer(replace(blind, samples=None))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"flops": 1e26}, "chips"),
        ({"unmonitored_chips": 1000.0}, "unmonitored"),
        ({"budget": 0.01}, "budget"),
    ],
)
def test_scenarios_without_an_answer(change: dict[str, float], says: str) -> None:
    with pytest.raises(InfeasibleError, match=says):
        scenario_answers.answer(replace(SMALL, **change))


def test_methods_outside_their_domain_have_no_value() -> None:
    found = scenario_answers.answer(replace(SMALL, run_days=5.0, flops=3e21))
    assert found.by_method["eq1"] is None
    assert found.by_method["hypergeometric"] is not None


def test_scenarios_are_left_as_they_are() -> None:
    before: Scenario = replace(SMALL)
    scenario_answers.answer(SMALL)
    assert before == SMALL
