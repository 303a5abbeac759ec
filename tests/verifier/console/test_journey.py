"""What the page of a snapshot says of each station, for honest, hidden, altered and unreadable ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.reported import build, collect

from verifier.console.journey import findings_about, stations


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return build(collect(tmp_path_factory.mktemp("report")))


def way(report: dict[str, Any], chip: int, **changed: Any) -> dict[str, tuple[str, str]]:
    one = report["chips"][chip]
    return {
        station.name.partition(" of ")[0] if station.name.startswith("Chip") else station.name: (
            station.tone,
            " ".join([station.says, *(f"{name}={value}" for name, value in station.facts)]),
        )
        for station in stations(report, one, one["snapshots"][0] | changed, None, "ab" * 32)
    }


def test_an_honest_snapshot_is_good_all_the_way(report: dict[str, Any]) -> None:
    said = way(report, 0)
    assert list(said) == ["Chip", "Log entry", "Transcript", "Check of the memory", "Replay", "Verdict"]
    assert {tone for tone, _ in said.values()} == {"good"}
    assert f"digest of the entry={'ab' * 32}" in said["Log entry"][1]
    assert "gives the same bits" in said["Replay"][1]
    assert "steps executed=0:2" in said["Replay"][1]


def test_a_snapshot_that_nobody_declared_is_not_called_replayed(report: dict[str, Any]) -> None:
    said = way(report, 1)
    assert said["Transcript"] == ("bad", "No transcript was declared for this moment.")
    assert said["Replay"] == ("calm", "Nothing was replayed.")
    assert said["Verdict"] == ("bad", "This snapshot is unexplained.")


def test_a_mismatch_names_where_the_replay_first_differed(report: dict[str, Any]) -> None:
    replay = report["chips"][0]["snapshots"][0]["replay"]
    first = {"step": 1, "op": 4, "operation": "mm.default", "path": "model.0", "expected": "aa", "found": "bb"}
    said = way(report, 0, status="mismatch", replay=replay | {"verdict": "mismatch", "first_difference": first})
    assert said["Verdict"][0] == said["Replay"][0] == "bad"
    assert "the same bits" not in said["Replay"][1]
    assert "first difference=step 1, operation 4 (mm.default, in model.0)" in said["Replay"][1]


def test_what_was_not_accounted_for_or_not_read_is_said(report: dict[str, Any]) -> None:
    memory = report["chips"][0]["snapshots"][0]["memory"]
    assert way(report, 0, memory=memory | {"unexplained": 8})["Check of the memory"][0] == "warn"
    assert way(report, 0, memory=None)["Check of the memory"][0] == "warn"
    assert way(report, 0, transcript="f" * 64)["Transcript"][0] == "bad"
    assert way(report, 0, replay=None)["Replay"][0] == "warn"
    silent = report | {"chips": [report["chips"][0] | {"reachable": False}]}
    assert way(silent, 0)["Chip"][0] == "bad"


def test_findings_belong_to_the_snapshot_that_they_name(report: dict[str, Any], tmp_path: Path) -> None:
    chip = report["chips"][0]
    row = chip["snapshots"][0] | {"index": 1}
    subjects = {
        f"chip {chip['ueid']} entry 1": True,
        f"chip {chip['ueid']} entry 1: weights": True,
        f"chip {chip['ueid']} entry 12": False,
        f"chip {'02' + chip['ueid'][2:]} entry 1": False,
        f"transcript {row['transcript']}": True,
        f"chip {chip['ueid']}": False,
        "": False,
    }
    about = report | {"findings": [{"subject": subject} for subject in subjects]}
    assert [each["subject"] for each in findings_about(about, chip, row)] == [s for s, its in subjects.items() if its]
    assert findings_about(about, chip, row | {"transcript": None})[-1]["subject"].endswith("weights")
