"""Replays on a real Ray: outcomes are those of the local farm, and what dies costs one retry."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import kills
from support.forging import at_step, forge
from support.hostile_tapes import crash, endless
from support.station import ROOT, Station
from support.untrained_transcripts import write_transcript

from verifier.farm.local_farm import CancelledError, Farm, LocalFarm
from verifier.farm.ray_farm import RayFarm, chosen
from verifier.model.replay_task import Outcome, Task
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.transcript.job_record import RECORD, JobRecord, MeshCoordinate, rank_name

pytest.importorskip("ray", reason="Ray is not installed; pip install 'weighbridge[ray]'")
pytestmark = pytest.mark.slow

SALT = b"s" * 32
ENV = {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"}
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
HEAD = """
import sys, ray
ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=128 << 20, _temp_dir=sys.argv[1])
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray on this machine that no other reaches; its address."""
    scratch = Path("/tmp") / f"ray-{os.getpid()}"  # Ray's sockets lie deep in it, and their paths must be short
    environment = os.environ | {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT), **TOKEN,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD, str(scratch)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.communicate()
        subprocess.run(["rm", "-rf", str(scratch)], check=True)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's workers import what the Verifier imports, and the Verifier has the cluster's token."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name, value in TOKEN.items():
        monkeypatch.setenv(name, value)


def task(name: str, path: Path, **fields: Any) -> Task:
    return Task(key=name, name=name, path=path, **{"stop": (4, 0), "salt": SALT, "env": ENV, **fields})


def run(farm: Farm, *tasks: Task) -> dict[str, Outcome]:
    return {each.key: outcome for each, outcome in farm.run(tasks, lambda *_: None)}


def nodes() -> list[int]:
    """The processes of Ray that run a replay worker now."""
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdecimal() and (place / "cmdline").read_bytes().startswith(b"ray::work"):
                found.append(int(place.name))
    return found


def workers() -> list[int]:
    """Replay workers of Ray's processes."""
    return [worker for node in nodes() for worker in kills.workers(node)]


@contextlib.contextmanager
def killing(times: int) -> Iterator[list[int]]:
    """Kills the first processes of Ray that are to run a replay worker, once they start what it comes from."""
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        while len(killed) < times and not over.wait(0.05):
            for pid in nodes():
                if pid not in killed and len(killed) < times and kills.children(pid):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def test_outcomes_are_those_of_the_local_farm(cluster: str, honest_run: Path, tmp_path: Path) -> None:
    crashing = forge(honest_run, tmp_path / "crash", at_step(3, crash))
    job = JobRecord(b"j" * 16, (("data", 1),))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / RECORD).write_bytes(job.encode())
    write_transcript(tmp_path / "job" / rank_name(0), draft={"job": MeshCoordinate(job, 0).to_map()})
    tasks = [
        task("honest", honest_run),
        task("crash", crashing),
        task("job", tmp_path / "job", rank=0, stop=(1, 0)),  # its tape is none, which its own worker must find
    ]
    told: list[tuple[str, int, int]] = []
    farm = RayFarm(cluster)
    there = {each.key: found for each, found in farm.run(tasks, lambda each, *steps: told.append((each.key, *steps)))}
    here = run(LocalFarm(["cpu", "cpu"]), *tasks)
    honest = there["honest"].result
    assert isinstance(honest, ReplayResult)
    assert honest.verdict == "match"
    local = here["honest"].result
    assert isinstance(local, ReplayResult)
    # Also what is said of its confinement; but each replay draws anew which outputs it searches for contested elements.
    assert replace(honest, evidence=local.evidence) == local
    assert all(honest.evidence[name] == local.evidence[name] for name in ("rounded", "entries", "bits", "up", "down"))
    for name in ("crash", "job"):
        ours, theirs = here[name].result, there[name].result
        assert isinstance(ours, WeighbridgeError)
        assert isinstance(theirs, WeighbridgeError)
        assert (type(theirs), theirs.reason, theirs.message) == (type(ours), ours.reason, ours.message)
        assert (ours.reason == "replay.worker") == (name == "crash")
    assert "honest" in [name for name, _, _ in told]


@pytest.mark.soak
def test_a_node_that_dies_costs_one_retry(cluster: str, honest_run: Path) -> None:
    farm = RayFarm(cluster)
    with killing(1) as killed:
        found = run(farm, task("honest", honest_run))["honest"].result
    assert len(killed) == 1
    assert isinstance(found, ReplayResult)
    assert found.verdict == "match"
    with killing(3) as killed:
        again = run(farm, task("honest", honest_run))["honest"].result
    assert len(killed) == 2  # it was not begun a third time
    assert isinstance(again, WeighbridgeError)
    assert again.reason == "replay.worker"
    deadline = time.monotonic() + 30
    while workers():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.soak
def test_replays_end_when_nobody_wants_them(cluster: str, honest_run: Path, tmp_path: Path) -> None:
    forever = forge(honest_run, tmp_path / "endless", at_step(3, endless))
    over = threading.Event()

    def stop() -> None:
        deadline = time.monotonic() + 60
        while not workers() and time.monotonic() < deadline:
            time.sleep(0.05)
        over.set()

    threading.Thread(target=stop).start()
    with pytest.raises(CancelledError):
        list(RayFarm(cluster).run([task("forever", forever)], lambda *_: None, over.is_set))
    deadline = time.monotonic() + 10
    while workers() or nodes():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_replays_do_not_outlive_a_killed_verifier(cluster: str, honest_run: Path, tmp_path: Path) -> None:
    forever = forge(honest_run, tmp_path / "endless", at_step(3, endless))
    program = (
        "from pathlib import Path; from verifier.model.replay_task import Task\n"
        "from verifier.farm.ray_farm import RayFarm\n"
        f"task = Task(key='x', name='x', path=Path({str(forever)!r}), steps=(0, 4), env={ENV!r})\n"
        f"list(RayFarm({cluster!r}).run([task], lambda *_: print('on', flush=True)))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    assert workers()
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while workers() or nodes():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.soak
def test_a_ray_of_ones_own_is_there_while_replays_are(honest_run: Path) -> None:
    found = run(chosen("ray", "", trusted=False), task("honest", honest_run))["honest"].result
    assert isinstance(found, ReplayResult)
    assert found.verdict == "match"
    assert not list(Path("/tmp").glob("weighbridge-ray-*"))
    assert nodes() == []


def test_a_ray_that_others_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE")
    for address in ("192.0.2.77:6379", "ray.example:6379", "[2001:db8::1]:6379"):
        with pytest.raises(UsageError, match="RAY_AUTH_MODE"):
            chosen(f"ray:{address}", "", trusted=False)
    for wrong in ("ray:", "ray:6379", "ray:ray://127.0.0.1:1", "slurm", "ray:127.0.0.1:x"):
        with pytest.raises(UsageError, match="--farm"):
            chosen(wrong, "", trusted=True)
    with pytest.raises(UsageError, match="devices"):
        chosen("ray", "cpu", trusted=False)
    assert isinstance(chosen("local", "cpu", trusted=False), LocalFarm)


def test_a_service_refuses_it_too(tmp_path: Path) -> None:
    with Station(tmp_path) as station:
        root = station.root
        arguments = [
            *("--db", str(root / "ray.db"), "--cache", str(root / "cache"), "--credentials", str(root / "verifier")),
            *("--manufacturer", str(root / "manufacturer.pem"), "--firmware", str(root / "firmware.img")),
        ]
        farm = ["--farm", "ray:192.0.2.77:6379"]
        command = [sys.executable, "-m", "weighbridge.cli", "serve", "verifier", *arguments, *farm]
        bare = {name: value for name, value in os.environ.items() if name not in TOKEN}
        done = subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--trust-ray-network" in done.stderr


def test_devices_are_those_of_the_cluster(cluster: str) -> None:
    farm = RayFarm(cluster)
    farm.check("cpu")
    for device in ("cuda", "cuda:0"):
        with pytest.raises(UsageError, match="plan with cpu"):
            farm.check(device)
