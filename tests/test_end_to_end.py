"""A small inspection with honest, sharded, hidden and altered runs; every party is a process of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.releases import need_jobs

from verifier.report import consistency
from weighbridge.cli.demo.cases import Case, judge
from weighbridge.cli.demo.command import train
from weighbridge.cli.demo.station import station
from weighbridge.cli.inspect.commands import write_report

CASES = (
    Case("honest", "digits", "honest", 8, None, "declared"),
    Case("sharded", "sharded", "honest", 2, None, "declared, on 2 ranks", ranks=2),
    Case("hidden", "digits", "hidden", 40, "snapshot.unexplained", "undeclared run"),
    Case("altered", "digits", "altered", 8, "replay.mismatch", "declared, trained on other data"),
)
DAY_FLOPS = 8.64e19


@pytest.fixture(scope="module")
def inspection(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, str]]:
    """The directory, the report, and the site of each chip's identity."""
    need_jobs()
    out = tmp_path_factory.mktemp("inspection")
    names = [*(site for case in CASES for site in case.sites), "idle"]
    with station(out / "station", runs=out, chips=names, rate_per_day=0.1, clock_speed=3600.0) as running:
        train(running, CASES, out, "cpu", Console(file=io.StringIO()))
        identifier = running.operator.start(
            samples=len(names),
            seed=b"end to end tests",
            flops_threshold=DAY_FLOPS * 30,
            chip_flops_per_day=DAY_FLOPS,
            period_days=30,
            snapshot_rate_per_day=0.1,
            replay_env={"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "2"},
        )
        stages = [update.stage for update in running.operator.watch(identifier)]
        assert stages[-1] == "done"
        report = running.operator.report(identifier)
        sites = {chip.ueid.hex(): chip.name for chip in running.chips}
    return out, report, sites


def test_each_run_comes_out_as_it_should(inspection: tuple[Path, dict[str, Any], dict[str, str]]) -> None:
    _, report, sites = inspection
    chips = {sites[chip["ueid"]]: chip for chip in report["chips"]}
    assert {name: chip["verified"] for name, chip in chips.items()} == {
        "honest": True,
        "sharded-0": True,
        "sharded-1": True,
        "hidden": False,
        "altered": False,
        "idle": True,
    }
    for case in CASES:
        for rank, site in enumerate(case.sites):
            assert len(chips[site]["snapshots"]) >= 1
            shards = [snapshot["shard"] and snapshot["shard"]["rank"] for snapshot in chips[site]["snapshots"]]
            assert set(shards) == {rank if case.ranks > 1 else None}
    violations = {(f["id"], f["subject"]) for f in report["findings"] if f["severity"] == "violation"}
    transcripts = {transcript["name"]: transcript["id"] for transcript in report["transcripts"]}
    assert set(transcripts) == {"honest", "rank-0000", "rank-0001", "altered"}
    hidden, altered = chips["hidden"]["ueid"], transcripts["altered"]
    assert any(name == "snapshot.unexplained" and hidden in subject for name, subject in violations)
    assert any(name == "replay.mismatch" and altered in subject for name, subject in violations)
    for name, subject in violations:  # and no other party is accused
        assert hidden in subject or altered in subject or chips["altered"]["ueid"] in subject, (name, subject)


def test_mismatch_names_first_bad_step_and_operation(inspection: tuple[Path, dict[str, Any], dict[str, str]]) -> None:
    _, report, sites = inspection
    (chip,) = (chip for chip in report["chips"] if sites[chip["ueid"]] == "altered")
    replays = [s["replay"] for s in chip["snapshots"] if s["replay"]]
    # A snapshot may have been taken before the first bad operation: up to there the replay matches.
    differences = [r["first_difference"] for r in replays if r["first_difference"] is not None]
    assert differences
    for difference in differences:
        assert difference["step"] >= 1
        assert difference["operation"]


def test_chips_with_violations_are_not_silent(
    inspection: tuple[Path, dict[str, Any], dict[str, str]],
) -> None:
    _, report, _ = inspection
    assert report["counts"]["registered"] == report["counts"]["sampled"] == 6
    assert (report["counts"]["verified"], report["counts"]["found_against"]) == (4, 2)
    inputs = report["probability"]["inputs"]
    assert (inputs["s"], inputs["w"], report["counts"]["unverified_after_draw"]) == (6, 0, 0)
    # One of six chips involved, all drawn, a snapshot on it with 1 - exp(-0.1 * 30).
    assert report["probability"]["hypergeometric"] == pytest.approx(1 - 2.718281828459045**-3, rel=1e-9)


def test_the_report_says_where_histories_were_looked_at(
    inspection: tuple[Path, dict[str, Any], dict[str, str]],
) -> None:
    """By default segments are replayed whole, those of jobs with all ranks, and the report says of each how many."""
    _, report, _ = inspection
    names = {each["id"]: each["name"] for each in report["transcripts"]}
    rows = {names[each["transcript"]]: each for each in report["replayed"]}
    assert {name: each["random"] for name, each in rows.items()} == {
        "honest": 1, "altered": 1, "rank-0000": 1, "rank-0001": 1
    }  # fmt: skip
    assert all(row["chance"] == 1 / row["segments"] for row in rows.values())
    lines = "\n".join(report["not_verifiable"])
    assert not [name for identifier, name in names.items() if identifier in lines]
    assert consistency.check(report) == []


def test_the_demo_judges_the_same(inspection: tuple[Path, dict[str, Any], dict[str, str]]) -> None:
    _, report, sites = inspection
    assert all(outcome.as_said for outcome in judge(report, sites, CASES))
    # Were any case another than it is, the demo would say so.
    for wrong in (
        [Case("honest", "digits", "altered", 8, "replay.mismatch", ""), *CASES[1:]],
        [*CASES[:2], Case("hidden", "digits", "honest", 8, None, ""), CASES[3]],
        [*CASES[:3], Case("altered", "digits", "honest", 8, None, "")],
        [CASES[0], Case("sharded", "sharded", "altered", 2, "replay.mismatch", "", ranks=2), *CASES[2:]],
        list(CASES[:3]),
    ):
        assert not all(outcome.as_said for outcome in judge(report, sites, wrong))


def test_report_is_one_page_and_one_object(
    inspection: tuple[Path, dict[str, Any], dict[str, str]], tmp_path: Path
) -> None:
    _, report, _ = inspection
    page = write_report(report, tmp_path).read_text(encoding="utf-8")
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == report
    assert "snapshot.unexplained" in page
    assert "replay.mismatch" in page
    assert 'src="http' not in page
    assert 'href="http' not in page


def test_honest_transcript_replays_alone(inspection: tuple[Path, dict[str, Any], dict[str, str]]) -> None:
    out, _, _ = inspection
    command = [sys.executable, "-m", "weighbridge.cli", "replay", str(out / "honest"), "--json"]
    env = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "match"
    assert not [finding for finding in result["findings"] if finding["severity"] == "violation"]
