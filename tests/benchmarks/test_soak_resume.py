"""Killed programs of each way of recording end as those that were not killed, and one that does not is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import machine, tables_replays
from benchmarks.resume_job import train, train_compiled
from benchmarks.soak_resume import RANKS, Way, same, soak, ways
from weighbridge.transcript.log_kinds import KINDS
from weighbridge.transcript.reader import Transcript

OFTEN = {"full, one by one", "on-demand, compiled", "sketch, compiled, 2 ranks"}
"""Ways that `make test-all` kills; `make soak` kills the others too."""


def test_programs_take_turns_in_all_ways() -> None:
    found = [(each.ranks, each.logs, each.compiled) for each in ways(16) if not each.wrapped]
    every = [(ranks, logs, compiled) for ranks in (1, RANKS) for logs in KINDS for compiled in (False, True)]
    assert sorted(found) == sorted(every)
    assert [each.ranks for each in ways(16) if each.wrapped] == [RANKS]


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [pytest.param(way, id=str(way), marks=[] if str(way) in OFTEN else pytest.mark.soak) for way in ways(16)]
)
def test_a_killed_program_ends_as_one_that_was_not(tmp_path: Path, way: Way) -> None:
    (by_way,) = soak(tmp_path, 1, 3, [way])
    result = by_way[str(way)]
    assert (result["programs"], result["replayed"], result["different"]) == (1, 1, [])
    assert result["killed"] >= 1
    assert (result["steps_as_programs"] > 0) is way.compiled
    for run in way.runs(tmp_path / "0" / "whole" / "run"):
        assert Transcript.open(run).draft.get("logs", "full") == way.logs


def test_a_run_of_another_seed_is_another_run(tmp_path: Path) -> None:
    for name, seed in (("first", 7), ("again", 7), ("other", 8)):
        for _ in train(tmp_path / name / "run", steps=2, seed=seed):
            pass
    reference = Transcript.open(tmp_path / "first" / "run")
    assert same(tmp_path / "again" / "run", reference)
    assert not same(tmp_path / "other" / "run", reference)


def test_steps_of_the_compiled_job_become_programs(tmp_path: Path) -> None:
    assert train_compiled(tmp_path / "run", logs="on-demand", device="cpu") >= 5


def test_smaller_results_lie_beside_the_larger_one_and_have_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    counts = {"programs": 60, "killed": 55, "resumed": 31, "replayed": 6, "different": []}
    earlier = {**machine.about(), "seed": 1, "seconds": 564.0, **counts}
    machine.save("resume", earlier)
    ways_ = {"sketch, compiled": {**counts, "programs": 2, "killed": 3, "steps_as_programs": 7}}
    machine.save("resume", {**machine.about(), "seed": 11, "seconds": 9.0, "ways": ways_}, "kinds of logs")
    found = machine.load("resume")
    assert found is not None
    assert {**found, machine.BESIDE: None} == {**earlier, machine.BESIDE: None}
    assert machine.load("resume", "kinds of logs") == found[machine.BESIDE]["kinds of logs"]
    assert machine.load("resume", "others") is None
    page = tables_replays.resume(found)
    assert "| full, one by one | 60 | 55 | 31 | 0 | 6 | 0 |" in page
    assert "| sketch, compiled | 2 | 3 | 31 | 0 | 6 | 7 |" in page
