"""Scenarios in TOML: what is written is read, defaults are those of the commands, errors name the key that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.catalog import CHIP_COLUMNS, MODEL_COLUMNS, CatalogError
from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.scenario import ScenarioError, load, paper, parse

EXAMPLES = sorted((Path(__file__).parents[2] / "analysis" / "scenarios").glob("*.toml"))
LEAST = """
title = "A"
[fleet]
chips = 1000
chip-flops = 1e15
[violation]
flops = 1e22
"""
FULL = (
    LEAST.replace("[violation]", "unmonitored-chips = 2\n[violation]")
    + """
run-days = 20
[inspection]
period-days = 10
rate = 0.5
probability = 0.8
samples = 7
missed = 0.25
[costs]
budget = 1e6
sample = 300
chip-day = 50
stall-seconds = 3
job-chips = 4
snapshot-bytes = 1000
gigabyte-month = 0.5
kept-days = 99
[replay]
job-chips = 10
steps = 1000
segment-steps = 100
given-collectives = true
"""
)


def toml(tables: dict[str, dict[str, Any]]) -> str:
    """Writes tables of numbers, texts and flags as TOML."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in tables.get("", {}).items()]
    for name, table in tables.items():
        if name:
            lines += [
                f"[{name}]",
                *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in table.items()),
            ]
    return "\n".join(lines)


def test_defaults_are_those_of_the_commands() -> None:
    found = parse(LEAST)
    assert (found.period_days, found.run_days, found.rate, found.wanted, found.missed) == (30, 30, 0.1, 0.9, 0)
    assert (found.samples, found.budget, found.replaying, found.model, found.chip) == (None, None, None, None, None)
    assert (found.sample_cost, found.costs.chip_day_cost, found.costs.snapshot_bytes) == (250, 48, 8e10)
    assert found.costs.kept_days == found.period_days
    assert found.chip_flops_per_day == 8.64e19
    assert found.fleet()["flops_threshold"] == 1e22


def test_every_key_is_read() -> None:
    found = parse(FULL)
    assert (found.period_days, found.run_days, found.rate, found.wanted) == (10, 20, 0.5, 0.8)
    assert (found.samples, found.missed, found.budget, found.sample_cost) == (7, 0.25, 1e6, 300)
    costs = found.costs
    assert (costs.chip_day_cost, costs.stall_seconds, costs.job_chips, costs.kept_days) == (50, 3, 4, 99)
    assert costs.byte_year_cost == pytest.approx(0.5 * 12 / 1e9)
    assert found.replaying is not None
    assert (found.replaying.job_chips, found.replaying.given_collectives) == (10, True)
    assert found.monitored_flops() == pytest.approx(1e22 - 2 * 8.64e19 * 20)


@settings(deadline=None)
@given(
    title=st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=40),
    chips=st.integers(1, 10**9),
    speed=st.floats(1e10, 1e18),
    flops=st.floats(1e10, 1e30),
    rate=st.floats(1e-3, 1e3),
    wanted=st.floats(0.01, 0.99),
    days=st.floats(0.1, 1000),
)
def test_what_is_written_is_read(
    title: str, chips: int, speed: float, flops: float, rate: float, wanted: float, days: float
) -> None:
    """Round trip: parse(write(scenario)) has the values that were written, exactly."""
    found = parse(
        toml({
            "": {"title": title},
            "fleet": {"chips": chips, "chip-flops": speed},
            "violation": {"flops": flops, "run-days": days},
            "inspection": {"rate": rate, "probability": wanted},
        })
    )  # fmt: skip
    assert (found.title, found.chips, found.chip_flops, found.flops) == (title, chips, speed, flops)
    assert (found.rate, found.wanted, found.run_days) == (rate, wanted, days)


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_examples_load(path: Path) -> None:
    assert load(path).title


def test_names_come_from_the_catalogue_or_a_newer_download(tmp_path: Path) -> None:
    text = LEAST.replace("chip-flops = 1e15", 'chip = "New chip"').replace("flops = 1e22", 'model = "New model"')
    with pytest.raises(ScenarioError, match="no 'New chip'"):
        parse(text)
    models, chips = tmp_path / "models.csv", tmp_path / "chips.csv"
    models.write_text(",".join(MODEL_COLUMNS) + "\nNew model,X,2027-01-01,1e22\n")
    chips.write_text(",".join(CHIP_COLUMNS) + "\nNew chip,X,2027-01-01,3e15\n")
    found = parse(text, models=models, chips=chips)
    assert (found.flops, found.chip_flops) == (1e22, 3e15)
    chips.write_text("nothing")
    with pytest.raises(ScenarioError, match="Hardware name"):
        parse(text, models=models, chips=chips)


def test_the_papers_setting() -> None:
    found = paper()
    assert (found.flops, found.chips, found.chip_flops_per_day, found.rate) == (5.76e23, 1e5, 8.64e19, 0.1)
    with pytest.raises(CatalogError, match="no 'Gnat'"):
        paper("Gnat")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('title = "A"', "", "title is missing"),
        ('title = "A"', "title = 3", "title must be a text"),
        ('title = "A"', 'title = "A"\ntilte = 1', "did you mean title.*allowed are title, note, fleet"),
        ("chips = 1000", "", "fleet.chips is missing"),
        ("chips = 1000", "chips = 0", "fleet.chips must be a whole number of at least 1"),
        ("chips = 1000", "chips = 1.5", "fleet.chips must be a whole number"),
        ("chips = 1000", "chips = nan", "fleet.chips must be a whole number"),
        ("chips = 1000", "chips = true", "fleet.chips must be a number, not True"),
        ("chips = 1000", 'chips = "many"', "fleet.chips must be a number, not 'many'"),
        ("chips = 1000", "chips = 1" + "0" * 400, "fleet.chips"),
        ("chip-flops = 1e15", "", "exactly one of fleet.chip and fleet.chip-flops"),
        ("chip-flops = 1e15", 'chip-flops = 1e15\nchip = "x"', "exactly one of fleet.chip and fleet.chip-flops"),
        ("chip-flops = 1e15", "chip-flops = inf", "fleet.chip-flops must be a positive finite number of FLOP/s"),
        ("chip-flops = 1e15", 'chip = "H100"', "H100 SXM"),
        ("flops = 1e22", "", "exactly one of violation.model and violation.flops"),
        ("flops = 1e22", "flops = -1", "violation.flops must be a positive"),
        ("flops = 1e22", "flops = 1e22\nrun-days = 0", "violation.run-days must be a positive"),
        ("[violation]", "unmonitored-chips = 0.5\n[violation]", "fleet.unmonitored-chips"),
        ("[violation]", "[violence]", "violation"),
        ("[fleet]", "fleet = 3\n[fleets]", "fleet must be a table"),
        ("flops = 1e22", "flops = 1e22\n[inspection]\nprobability = 1", "inspection.probability must lie between"),
        ("flops = 1e22", "flops = 1e22\n[inspection]\nmissed = 1.1", "inspection.missed must lie between 0 and 1"),
        (
            "flops = 1e22",
            "flops = 1e22\n[inspection]\nsamples = 1001",
            "samples = 1001 is more than fleet.chips = 1000",
        ),
        ("flops = 1e22", "flops = 1e22\n[inspection]\nrates = 1", "did you mean rate"),
        ("flops = 1e22", "flops = 1e22\n[costs]\njob-chips = 0", "costs.job-chips"),
        ("flops = 1e22", "flops = 1e22\n[costs]\nbudget = -1", "costs.budget"),
        ("flops = 1e22", "flops = 1e22\n[replay]\nsteps = 1", "replay.job-chips is missing"),
        (
            "flops = 1e22",
            "flops = 1e22\n[replay]\njob-chips = 1001\nsteps = 9\nsegment-steps = 1",
            "replay.job-chips = 1001 is more than fleet.chips = 1000",
        ),
        (
            "flops = 1e22",
            "flops = 1e22\n[replay]\njob-chips = 1\nsteps = 9\nsegment-steps = 10",
            "replay.segment-steps = 10 is more than replay.steps = 9",
        ),
        (
            "flops = 1e22",
            "flops = 1e22\n[replay]\njob-chips = 1\nsteps = 9\nsegment-steps = 1\ngiven-collectives = 1",
            "replay.given-collectives must be true or false",
        ),
        ("[fleet]", "[fleet", "no TOML"),
    ],
)
def test_a_wrong_scenario_names_the_key_and_what_is_allowed(old: str, new: str, says: str) -> None:
    assert old in LEAST
    with pytest.raises(ScenarioError, match=says) as caught:
        parse(LEAST.replace(old, new), "mine.toml")
    assert str(caught.value).startswith("mine.toml: ")


def test_a_violation_that_fits_on_unmonitored_chips() -> None:
    with pytest.raises(InfeasibleError, match="fits on unmonitored chips"):
        parse(FULL.replace("unmonitored-chips = 2", "unmonitored-chips = 200")).monitored_flops()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    with pytest.raises(ScenarioError, match="cannot be read"):
        load(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ScenarioError, match="not UTF-8"):
        load(path)
    path.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(ScenarioError, match="no scenario"):
        load(path)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
KEYS = st.sampled_from(["chips", "chip", "chip-flops", "model", "flops", "rate", "samples", "steps", "budget", "x"])


@settings(deadline=None, max_examples=150)
@given(
    text=st.text(max_size=60)
    | st.dictionaries(
        st.sampled_from(["fleet", "violation", "inspection", "costs", "replay"]),
        st.dictionaries(KEYS, VALUES.filter(lambda value: value is not None), max_size=4),
        max_size=4,
    ).map(lambda tables: toml({"": {"title": "A"}} | tables)),
)
def test_hostile_text_raises_only_scenario_errors(text: str) -> None:
    try:
        found = parse(text)
    except ScenarioError:
        return
    try:
        found.fleet()
    except DetectionDomainError:
        return
