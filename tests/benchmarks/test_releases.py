"""Transcripts travel between releases of PyTorch; here the parts of that comparison that need one release only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine, releases


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("releases") / "kernels"
    return path, releases.record("kernels", path)


def test_what_one_interpreter_records_it_replays(recorded: tuple[Path, dict[str, Any]]) -> None:
    path, made = recorded
    found = releases.check(path)
    assert found["verdict"] == "match"
    assert found["steps"] == [0, releases.UPDATES + 1]
    assert (found["torch"], found["rules"]) == (made["torch"], made["rules"])
    assert found["logged"] == made["logged"] > 0


def test_the_committed_result_went_both_ways_and_agreed() -> None:
    result = machine.load("releases")
    assert result is not None, "run make test-oldest"
    ways = {(run["recorded"]["torch"], run["replayed"]["torch"], run["subject"]) for run in result["runs"]}
    assert len({way[:2] for way in ways}) == 2
    assert {(b, a, name) for a, b, name in ways} == ways, "each subject goes both ways"
    assert {name for _, _, name in ways} == set(releases.SUBJECTS)
    assert all(run["replayed"]["verdict"] == "match" for run in result["runs"])
    assert result["agreed"]


@pytest.mark.parametrize("spoilt", ["verdict", "rules"])
def test_one_run_that_does_not_match_spoils_the_result(recorded: tuple[Path, dict[str, Any]], spoilt: str) -> None:
    path, made = recorded
    run = {"subject": "kernels", "recorded": made, "replayed": releases.check(path)}
    assert releases.agreed([run, run])
    assert not releases.agreed([run, {**run, "replayed": {**run["replayed"], spoilt: "other"}}])
