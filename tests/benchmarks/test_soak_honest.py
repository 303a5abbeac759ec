"""What is counted of inspections of honest Provers: by kind of log and by how steps are recorded, too."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from benchmarks import tables_inspection
from benchmarks.machine import BESIDE, about
from benchmarks.soak_honest import Scenario, Tally, Training
from weighbridge.transcript.log_kinds import KINDS

FIRST = Training("tiny", logs="on-demand", compiled=True)
SCENARIO = Scenario((FIRST, replace(FIRST, logs="sketch", compiled=False)), "", 1, 3, 0.1, "SSE2", bytes(16))


def report(*severities: str) -> dict[str, Any]:
    """A report on two chips that trained and one that was idle, with findings of these severities."""
    statuses = {"job0": ["explained", "explained"], "job1": ["unverified"], "idle0": ["idle"]}
    return {
        "chips": [{"site": name, "snapshots": [{"status": s} for s in each]} for name, each in statuses.items()],
        "findings": [{"id": f"finding.{number}", "severity": each} for number, each in enumerate(severities)],
        "evidence": {"supplements": {"requests": [{"begin": 1, "end": 11, "came": 10}]}},
    }


def test_seeds_choose_every_kind_of_log_and_way_of_steps() -> None:
    trainings = [each for seed in range(1, 40) for each in Scenario.of(seed).trainings]
    assert {(each.logs, each.compiled) for each in trainings} == {(k, c) for k in KINDS for c in (False, True)}


def test_inspections_are_counted_by_kind_of_log() -> None:
    tally = Tally()
    tally.add(5, SCENARIO, report("info"), Counter({"as programs": 36, "one by one": 44}))
    counted = tally.to_json()
    assert counted["logs"] == {"on-demand, compiled": 1, "sketch, one by one": 1}
    assert counted["snapshots by logs"] == {"on-demand, compiled: explained": 2, "sketch, one by one: unverified": 1}
    assert counted["logs asked for"] == {"asked": 10, "came": 10}
    assert counted["steps"] == {"as programs": 36, "one by one": 44}
    assert counted["accused"] == []
    assert Tally.of(counted).to_json() == counted
    tally.add(6, SCENARIO, report("info", "warning"), Counter())
    assert [(each["seed"], each["id"]) for each in tally.accused] == [(6, "finding.1")]


def test_the_page_has_what_lies_beside_a_larger_soak() -> None:
    tally = Tally()
    tally.add(5, SCENARIO, report("info"), Counter({"as programs": 36}))
    soaked = {**about(), "seeds": [5, 5], "seconds": 60.0, **tally.to_json()}
    earlier = {name: each for name, each in soaked.items() if name not in ("logs", "steps", "snapshots by logs")}
    page = tables_inspection.honest({**earlier, BESIDE: {"kinds of logs": soaked}})
    assert page.count("**0 findings against any party**") == 2
    assert page.count("| logs | 1 on-demand, compiled; 1 sketch, one by one |") == 1
