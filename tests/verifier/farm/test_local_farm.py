"""Replays in parallel, and tapes that hang, hoard memory or kill their process: they cost their own replay only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.forging import at_step, forge, resign
from support.hostile_tapes import crash, endless
from support.kills import is_worker, workers
from support.recording_store import RecordingStore
from support.sharded_runs import recorded
from support.station import ROOT

from verifier.farm.local_farm import CancelledError, LocalFarm, slots
from verifier.model.replay_task import Outcome, Task
from weighbridge.core.errors import ReplayWorkerError, UsageError, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.worker_process import Limits
from weighbridge.transcript.job_record import rank_name
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.training_claims import CLAIMS, encode

TWO = ["primitives", "ddp", "unused", "static", "accumulate", "tensor", "fsdp", "meta", "pipeline", "false"]
"""Jobs that other tests record too."""
SALT = b"s" * 32
ENV = {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"}


def task(name: str, path: Path, **fields: Any) -> Task:
    return Task(key=name, name=name, path=path, **{"stop": (4, 0), "salt": SALT, "env": ENV, **fields})


def run(farm: LocalFarm, *tasks: Task) -> dict[str, Outcome]:
    return {each.key: outcome for each, outcome in farm.run(tasks, lambda *_: None)}


def reason(outcome: Outcome) -> str:
    assert isinstance(outcome.result, WeighbridgeError)
    return outcome.result.reason


def test_tapes_that_hang_or_kill_their_process_cost_their_own_replay_only(honest_run: Path, tmp_path: Path) -> None:
    forged = [forge(honest_run, tmp_path / each.__name__, at_step(3, each)) for each in (endless, crash)]
    limits = Limits(seconds=12)
    found = run(
        LocalFarm(["cpu", "cpu"]),
        *(task(path.name, path, limits=limits) for path in forged),
        task("honest", honest_run),
    )
    assert reason(found["endless"]) == reason(found["crash"]) == "replay.worker"
    assert 11 < found["endless"].seconds < 60
    honest = found["honest"].result
    assert isinstance(honest, ReplayResult)
    assert honest.verdict == "match"
    assert honest.live


def test_replays_run_side_by_side_one_in_each_slot(honest_run: Path) -> None:
    spans = []
    before = time.monotonic()
    for _, outcome in LocalFarm(["cpu", "cpu"]).run([task("a", honest_run), task("b", honest_run)], lambda *_: None):
        end = time.monotonic() - before
        spans.append((end - outcome.seconds, end))
    (a, b), (c, d) = spans
    assert min(b, d) > max(a, c)


def test_positions_and_steps(honest_run: Path) -> None:
    found = run(
        LocalFarm(),
        task("beyond", honest_run, stop=(77, 0)),
        task("steps", honest_run, stop=None, salt=None, steps=(1, 3)),
    )
    assert isinstance(found["beyond"].result, UsageError)
    steps = found["steps"].result
    assert isinstance(steps, ReplayResult)
    assert (steps.verdict, steps.steps) == ("match", (1, 3))


def test_replays_end_when_nobody_wants_them(honest_run: Path, tmp_path: Path) -> None:
    forever = forge(honest_run, tmp_path / "endless", at_step(3, endless))
    over = threading.Event()
    others = set(workers(os.getpid()))  # of tests that ran before in this process
    threading.Timer(3.0, over.set).start()
    started = time.monotonic()
    with pytest.raises(CancelledError):
        list(LocalFarm(["cpu"]).run([task("forever", forever)], lambda *_: None, over.is_set))
    assert time.monotonic() - started < 60
    while set(workers(os.getpid())) - others:
        assert time.monotonic() - started < 90  # a killed process is there until its parent was told
        time.sleep(0.05)


def test_a_worker_does_not_outlive_who_started_it(honest_run: Path, tmp_path: Path) -> None:
    forever = forge(honest_run, tmp_path / "endless", at_step(3, endless))
    program = (
        f"from weighbridge import replay; print(replay({str(forever)!r}, progress=lambda *_: print('on', flush=True)))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env=os.environ | ENV | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"  # the first step is done, so the worker is confined
    (worker,) = workers(process.pid)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while is_worker(worker):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_worker_that_fails_at_recognising_a_job_costs_no_replay(recordings: RecordingStore, tmp_path: Path) -> None:
    """Claims of many backward passes on one rank outlast the worker; without them the job matches."""
    job = shutil.copytree(recorded(recordings, TWO, 2) / "ddp", tmp_path / "ddp")
    rank = job / rank_name(0)
    claims = Transcript.open(rank).claims
    for digest, each in claims.items():
        (backward,) = each.backwards
        empty = replace(backward, begin=backward.end, gradients=())
        claims[digest] = replace(each, backwards=(backward, *[empty] * 60_000))
    (rank / CLAIMS).write_bytes(encode(claims))
    resign(rank)
    usual = task("job", job, rank=0, stop=None, salt=None, steps=(1, 3))
    assert list(LocalFarm().run([usual], lambda *_: None))  # whatever workers share is there after that
    found = run(LocalFarm(), replace(usual, recognise=(2, 7), limits=Limits(4 << 30, 20)))["job"].result
    assert isinstance(found, ReplayResult)
    assert (found.verdict, found.recognised) == ("match", [])
    assert "ended" in found.recognition_failed


def test_devices_are_read_and_checked() -> None:
    assert slots("") == []
    assert slots("cpu, cpu") == ["cpu", "cpu"]
    farm = LocalFarm(["cpu"])
    farm.check("cpu")
    with pytest.raises(UsageError, match="replay-devices"):
        farm.check("cuda")
    with pytest.raises(UsageError, match="replay-devices"):
        next(farm.run([task("x", Path("x"), device="cuda:7")], lambda *_: None))
    LocalFarm().check("cuda:7")
    LocalFarm(["cuda:0", "cuda:1"]).check("cuda")
    for text in ("gpu", "cpu;rm", "cuda:99", "cuda"):
        with pytest.raises(UsageError, match="no device"):
            slots(text)
    if torch.cuda.is_available():
        assert slots("cuda:*") == [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    else:
        with pytest.raises(UsageError, match="0 CUDA devices"):
            slots("cuda:*")


def test_a_process_that_cannot_be_started_is_an_outcome(honest_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "nowhere")  # none has started any for this environment
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    found = run(LocalFarm(), task("x", honest_run))
    assert isinstance(found["x"].result, ReplayWorkerError)
