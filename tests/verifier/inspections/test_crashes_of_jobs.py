"""Honest jobs on several ranks that crash on their chips: no Prover is accused, whatever died first."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.releases import need_jobs
from support.sharded_runs import record
from support.station import ROOT, Station, ids, wait_for

from weighbridge.transcript.job_record import is_job, rank_name
from weighbridge.transcript.reader import Transcript

RANKS = 2
JOB = Path(__file__).parents[2] / "support" / "doomed_job.py"
RESUMED = JOB.with_name("resumed_job.py")
INTERRUPTS_A_SECOND = 0.5


def start(station: Station, out: Path) -> list[subprocess.Popen[bytes]]:
    """Starts a job on two new chips and waits until it has made a step, and each chip a snapshot after that."""
    need_jobs()
    out.mkdir()
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in range(RANKS):
        chip = station.chip(f"rank-{rank}", clock_speed=86_400.0 * INTERRUPTS_A_SECOND, hold=512)
        command = [sys.executable, str(JOB), str(rank), str(RANKS), str(out), str(chip.socket)]
        processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL))
    checkpoint = out / "job" / "rank-0001" / "checkpoints" / "00000001.safetensors"
    wait_for(checkpoint.exists, processes[1], seconds=120)
    before = taken(station)
    wait_for(
        lambda: all(now > then for now, then in zip(taken(station), before, strict=True)), processes[0], seconds=120
    )
    return processes


def taken(station: Station) -> list[int]:
    """How many snapshots each chip has logged."""
    chips = [station.root / "chips" / f"rank-{rank}" for rank in range(RANKS)]
    return [len(list((chip / "snapshots").iterdir())) for chip in chips]


def die(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait(timeout=60)


@pytest.mark.parametrize(
    ("deaths", "sharded"),
    [(["one rank"], "all"), pytest.param(["all ranks", "a chip"], "cells", marks=pytest.mark.soak)],
)
def test_a_job_that_crashed_accuses_nobody(tmp_path: Path, deaths: list[str], sharded: str) -> None:
    death, moment = random.SystemRandom().choice(deaths), random.SystemRandom().uniform(0.2, 1.5)
    with Station(tmp_path) as station:
        processes = start(station, station.runs / "crashed")
        try:
            time.sleep(moment)
            if death == "one rank":
                processes[1].kill()
                processes[0].wait(timeout=60)  # its peer is gone, so its step fails, and it closes what it has
                assert processes[0].returncode not in (0, -signal.SIGKILL)
            elif death == "a chip":
                station.chips["rank-0"].kill()
                processes[0].wait(timeout=60)
        finally:
            die(processes)
        if death == "a chip":
            station.chips["rank-0"].start()
        assert is_job(station.runs / "crashed" / "job")
        address = station.prover()
        for name in station.chips:
            station.register(name, address)
        report = station.inspect("rank-0", "rank-1", sharded=sharded, chunks=20)
        where = f"{death} after {moment:.3f} s: {report['findings']}"
        assert ids(report, "violation") == [], where
        statuses = [snapshot["status"] for chip in report["chips"] for snapshot in chip["snapshots"]]
        assert set(statuses) <= {"explained", "explained given collectives", "unverified"}, where
        assert any(status.startswith("explained") for status in statuses), where


@pytest.mark.slow
@pytest.mark.parametrize("sharded", ["all", "cells"])
def test_a_job_that_was_resumed_is_clean(tmp_path: Path, sharded: str) -> None:
    """Snapshots in a step that one rank had not recorded, in those that were made again, and in a new one."""
    with Station(tmp_path) as station:
        names = [f"rank-{rank}" for rank in range(RANKS)]
        sockets = [station.chip(name).socket for name in names]
        record(["on_chip"], RANKS, station.runs, sockets, program=RESUMED)
        address = station.prover()
        for name in names:
            station.register(name, address)
        report = station.inspect(*names, sharded=sharded, chunks=20)
        runs = [Transcript.open(station.runs / "on_chip" / "run" / rank_name(rank)) for rank in range(RANKS)]
    assert [[(r.step, r.begin) for r in run.resumptions] for run in runs] == [[(7, 4)], [(6, 4)]]
    assert [{step for _, _, step, _ in run.resumptions[0].snapshots} for run in runs] == [{5, 6}, {5, 6}]
    assert ids(report, "violation") == ids(report, "warning") == [], report["findings"]
    statuses = {snapshot["status"] for chip in report["chips"] for snapshot in chip["snapshots"]}
    # A snapshot between a checkpoint and the first collective after it is explained without anything given.
    assert statuses <= {"explained", "explained given collectives"}
    assert sharded == "cells" or statuses == {"explained"}
    assert report["counts"]["snapshots"] == 10
