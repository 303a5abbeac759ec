"""Three seeded inspections of honest Provers, in real processes; `benchmarks.soak_honest` makes 200, of more models."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak_honest import ARITHMETIC, ENDS, SETS, Scenario, accusations
from weighbridge.transcript.log_kinds import KINDS

SMALL = ("tiny", "perceptron", "lstm", "llama")


SEEDS = (1, 233, 2162)
"""Together: every model, arithmetic, kind of log, instruction set and end, compiled steps, a parent, and two ranks."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.soak) for seed in SEEDS[1:])])
def test_an_honest_inspection_finds_nothing_against_anybody(tmp_path: Path, seed: int) -> None:
    """And every chip that was not verified has a reason that is no party's fault."""
    scenario = Scenario.of(seed, SMALL)
    report, steps = scenario.inspect(tmp_path)
    assert accusations(report) == [], scenario
    compiled = any(each.compiled for each in scenario.trainings if each.end in ("ends well", "dies and is resumed"))
    assert (steps["as programs"] > 0) is compiled
    assert report["counts"]["sampled"] == scenario.samples
    unverified = {"chip.interrupt.unserved", "snapshot.tail", "snapshot.empty", "snapshot.setup", "job.tail"}
    for chip in report["chips"]:
        reasons = {each["id"] for each in report["findings"] if chip["ueid"] in each["subject"]}
        assert chip["verified"] or reasons & unverified, (scenario, chip, report["findings"])


def test_the_seeds_are_of_all_kinds() -> None:
    scenarios = [Scenario.of(seed, SMALL) for seed in SEEDS]
    trainings = [training for scenario in scenarios for training in scenario.trainings]
    assert {each.model for each in trainings} == set(SMALL)
    assert {(each.precision, each.policy) for each in trainings} == set(ARITHMETIC)
    assert {each.end for each in trainings} == set(ENDS)
    assert {each.logs for each in trainings} == set(KINDS)
    assert {each.compiled for each in trainings} == {False, True}
    assert {each.machine for each in trainings} == {each.replayed_on for each in scenarios} == set(SETS)
    assert any(each.from_first for each in trainings)
    assert any(each.sharded for each in scenarios)
