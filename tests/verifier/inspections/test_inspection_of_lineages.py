"""Inspections of runs that follow from each other, over real chips and Provers; with whole segments replayed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import station as stations
from support.station import LIMITS, ROOT, Station, ids

from verifier.inspection import Inspection
from verifier.model import segments
from verifier.model.facts import Plan
from verifier.model.policies import SegmentPolicy
from verifier.model.reference_values import FirmwarePolicy
from verifier.model.seeded_draw import draw
from verifier.model.segments import Criterion, Secret
from verifier.store.cache import Cache
from weighbridge.core.errors import UsageError
from weighbridge.execution.transcript_facts import open_confined

JOB = Path(stations.__file__).with_name("lineage_job.py")
NAMES = ("base", "child", "half")
SECRET = Secret.of([Criterion("step", 1)])


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """A run, one that was fine-tuned from it and says so, and one that was and does not; each on a chip of its own."""
    with Station(tmp_path_factory.mktemp("station")) as station:
        for name in NAMES:
            station.chip(name)
            command = [sys.executable, str(JOB), str(station.chips[name].socket), str(station.runs / name)]
            command += [] if name == "base" else [str(station.runs / "base")]
            subprocess.run([*command, *(["--declare"] if name == "child" else [])], cwd=ROOT, check=True, timeout=100)
        prover = station.prover()
        for name in NAMES:
            station.register(name, prover)
        yield station


def inspect(
    station: Station, *names: str, secret: Secret | None = None, identifier: str = "", **changes: Any
) -> dict[str, Any]:
    wanted = sorted(station.ueids[name] for name in names)
    everybody = [chip.ueid for chip in station.registry.chips()]
    seeds = (number.to_bytes(16, "big") for number in range(100_000))
    seed = next(seed for seed in seeds if sorted(draw(everybody, len(names), seed)) == wanted)
    plan = Plan(
        samples=len(names), seed=seed, flops_threshold=2.0, chip_flops_per_day=1.0, period_days=2.0,
        snapshot_rate_per_day=1.0, replay_env={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    plan = replace(plan, **changes)
    name = identifier or " ".join(names)
    station.registry.start_inspection(name, seed=seed, plan=plan.to_json(), chips=draw(everybody, len(names), seed))
    return Inspection(
        identifier=name,
        plan=plan,
        registry=station.registry,
        cache=Cache(station.root / "cache"),
        credentials=station.verifier,
        manufacturer=station.manufacturer.certificate,
        firmware=FirmwarePolicy.of([station.root / "firmware.img"], station.manufacturer.certificate, limits=LIMITS),
        progress=lambda *_: None,
        secret=secret,
    ).run()


def test_a_declared_parent_is_compared_and_a_run_cut_in_two_is_found(station: Station) -> None:
    report = inspect(station, *NAMES)
    assert ids(report, "violation") + ids(report, "warning") == ["transcript.run.split"]
    names = {each["name"]: each["id"] for each in report["transcripts"]}
    (split,) = [each for each in report["findings"] if each["id"] == "transcript.run.split"]
    assert split["subject"] == f"transcript {names['half']}"
    began = {each["transcript"]: each for each in report["evidence"]["beginnings"]}
    assert began[names["base"]]["from_outside"] == 0
    assert began[names["child"]]["from_outside"] == began[names["half"]]["from_outside"] > 1000
    assert began[names["child"]]["parent"] == {"transcript": names["base"], "step": 5}
    assert began[names["child"]]["compared"]
    assert report["counts"]["verified"] == 3


def test_a_parent_is_fetched_though_nothing_else_asks_for_it(station: Station) -> None:
    """The parent's chip is not drawn. Whole segments are replayed, and their choice is opened; and of a chip that could
    do but ten FLOPs a second, the work is impossible.
    """
    policy = SegmentPolicy(random=1, largest=1, memorisation=1, records=5, commitment=SECRET.commitment())
    report = inspect(station, "child", secret=SECRET, segments=policy, peak_flops=10.0)
    assert ids(report, "violation") + ids(report, "warning") == ["chip.work.impossible"]
    assert report["counts"]["verified"] == 0
    assert {each["name"] for each in report["transcripts"]} == {"base", "child"}
    (found,) = report["evidence"]["segments"]
    transcript = open_confined(station.runs / "child")
    assert segments.verify(transcript, found["selection"], report["plan"]["segments"]["commitment"])
    reasons = [reason for each in found["selection"]["chosen"] for reason in each["reasons"]]
    assert {"snapshot", "change", "secret"} <= set(reasons)
    assert {each["verdict"] for each in found["verdicts"]} == {"match"}
    (memory,) = report["evidence"]["memories"]
    assert memory["transcript"] == transcript.digest
    assert memory["begin"] == 1
    assert len(memory["own"]) == 4
    assert 0 < memory["p"] <= 1
    (opened,) = report["evidence"]["records"]
    assert opened["asked"] == opened["used"] == opened["opened"] == 5


def test_criteria_that_nobody_committed_to_are_refused(station: Station) -> None:
    with pytest.raises(UsageError):
        inspect(station, "base", identifier="unopened", segments=SegmentPolicy(commitment=SECRET.commitment()))
    with pytest.raises(UsageError):
        inspect(station, "base", identifier="uncommitted", secret=SECRET)
