"""Workers forked from the fork server behave as separately started programs would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weighbridge.execution import fork_server
from weighbridge.execution.fork_server import ForkServer

pytestmark = pytest.mark.skipif(not fork_server.SUPPORTED, reason="fork servers are Linux's")

ROOT = Path(__file__).parents[3]

TRIALS = """
import ctypes, json, os, sys, tempfile, time

from weighbridge.execution.workers import confinement

asked = sys.stdin.read()
if asked == "say":
    open_files = sorted(int(each) for each in os.listdir("/proc/self/fd"))[:-1]  # the last lists the others
    said = {"tmp": tempfile.gettempdir(), "here": os.getcwd(), "files": open_files, "mark": os.environ.get("MARK")}
    said["seen"] = vars(json).get("seen", 0)
    json.seen = 1  # which the next worker must not see
    main = lambda: print(json.dumps(said))
elif asked == "fail":
    main = lambda: 1 / 0
elif asked == "leave":
    main = lambda: sys.exit(7)
elif asked == "abort":
    main = os.abort
else:
    def main():
        confinement.limit_resources(1 << 30, 60, address_space=False)
        print(os.getpid(), flush=True)
        time.sleep(60)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("modules")
    (place / "trials.py").write_text(TRIALS)
    return {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{place}{os.pathsep}{ROOT}"}


@pytest.fixture(scope="module")
def started(environment: dict[str, str]) -> Iterator[ForkServer]:
    there = ForkServer(environment)
    yield there
    there.end()


def ask(there: ForkServer, what: str, scratch: Path) -> tuple[int, str, str]:
    with there.start("trials", str(scratch)) as worker:
        worker.stdin.write(what.encode())
        worker.stdin.close()
        out, err = worker.stdout.read().decode(), worker.stderr.read().decode()
        return worker.wait(), out, err


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_has_its_own_directory_and_nothing_of_the_fork_server_or_of_another(
    started: ForkServer, tmp_path: Path
) -> None:
    for number in range(2):
        scratch = tmp_path / str(number)
        scratch.mkdir()
        code, out, _ = ask(started, "say", scratch)
        said: dict[str, Any] = json.loads(out)
        assert code == 0
        assert said == {"tmp": str(scratch), "here": str(scratch), "files": [0, 1, 2], "mark": None, "seen": 0}


@pytest.mark.parametrize(
    ("what", "code", "message"), [("fail", 1, "ZeroDivisionError"), ("leave", 7, ""), ("abort", -signal.SIGABRT, "")]
)
def test_its_end_is_told_as_of_any_process(
    started: ForkServer, tmp_path: Path, what: str, code: int, message: str
) -> None:
    ended, out, err = ask(started, what, tmp_path)
    assert (ended, out) == (code, "")
    assert message in err


def test_it_can_be_killed_and_others_go_on(started: ForkServer, tmp_path: Path) -> None:
    with started.start("trials", str(tmp_path)) as first, started.start("trials", str(tmp_path)) as second:
        for worker in (first, second):
            worker.stdin.close()
            assert runs(int(worker.stdout.readline()))
        first.kill()
        assert first.wait() == -signal.SIGKILL
        assert second.poll() is None
        second.kill()
    assert second.poll() == -signal.SIGKILL
    first.kill()  # no harm
    assert ask(started, "leave", tmp_path)[0] == 7


def test_a_worker_that_is_not_wanted_any_more_does_not_wait_for_kernels(
    environment: dict[str, str], tmp_path: Path
) -> None:
    there = ForkServer({**environment, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"})
    with there.start("trials", str(tmp_path)) as worker:
        worker.kill()
        assert worker.wait() == -signal.SIGKILL
    assert not there.alive
    eventually(lambda: not runs(there._process.pid))


def test_workers_end_with_a_fork_server_that_is_killed_and_another_takes_its_place(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with fork_server.start("trials", environment, str(tmp_path)) as worker:
        worker.stdin.close()
        process = int(worker.stdout.readline())
        parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
        eventually(lambda: not runs(process))
    with fork_server.start("trials", environment, str(tmp_path)) as worker:
        worker.stdin.write(b"leave")
        worker.stdin.close()
        assert worker.wait() == 7


def test_each_environment_has_its_own_and_idle_ones_are_ended(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "_KEPT", 1)
    for mark in ("a", "b"):
        with fork_server.start("trials", {**environment, "MARK": mark}, str(tmp_path)) as worker:
            worker.stdin.write(b"say")
            worker.stdin.close()
            assert json.loads(worker.stdout.read())["mark"] == mark
    children = subprocess.run(
        ["pgrep", "--parent", str(os.getpid()), "--full", "fork_server_process"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(children.stdout.split()) <= 2  # one, and that of this module's fixture


PARENT = """
import sys, tempfile
from weighbridge.execution import fork_server

worker = fork_server.start("trials", eval(sys.argv[1]), tempfile.mkdtemp())
worker.stdin.close()
print(int(worker.stdout.readline()), flush=True)
worker.wait()
"""


def test_all_end_when_their_parent_is_killed(environment: dict[str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, repr(environment)], cwd=ROOT, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        between = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        assert runs(worker)
        assert runs(between)
        parent.kill()
        eventually(lambda: not runs(worker) and not runs(between))
