"""Ten seeded inspections of honest Provers, with real processes; `benchmarks.soak_honest` makes 200, of more models."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak_honest import Scenario, accusations

SMALL = ("tiny", "perceptron", "lstm", "llama")


@pytest.mark.parametrize("seed", range(1, 11))
def test_an_honest_inspection_finds_nothing_against_anybody(tmp_path: Path, seed: int) -> None:
    """And every chip that was not verified has a reason that is nobody's fault."""
    scenario = Scenario.of(seed, SMALL)
    report = scenario.inspect(tmp_path)
    assert accusations(report) == [], scenario
    assert report["counts"]["sampled"] == scenario.samples
    unverified = {"chip.interrupt.unserved", "snapshot.tail", "snapshot.empty", "snapshot.setup", "job.tail"}
    for chip in report["chips"]:
        reasons = {each["id"] for each in report["findings"] if chip["ueid"] in each["subject"]}
        assert chip["verified"] or reasons & unverified, (scenario, chip, report["findings"])
