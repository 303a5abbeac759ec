"""What a worker in namespaces of its own does not find, tried out without seccomp and Landlock."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from weighbridge.execution.workers import isolation

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")

SCRIPT = """
import ctypes, json, os, signal, socket, sys, time
from pathlib import Path
from weighbridge.execution.workers import confinement, isolation

allowed, other, scratch, port, shared, sleeps = *(Path(a) for a in sys.argv[1:4]), *map(int, sys.argv[4:])
outside = os.getppid()
applied = isolation.enter([*confinement.program_paths(), allowed], scratch, scratch_bytes=1 << 20)
applied += isolation.hide_memory()

def tried(action):
    try:
        return action() and "done"
    except BaseException as error:
        return type(error).__name__

def connect():
    return socket.create_connection(("127.0.0.1", port), timeout=5)

def attach():
    found = ctypes.CDLL(None).shmget(shared, 0, 0)
    if found < 0:
        raise FileNotFoundError
    return True

def fill():
    with open(scratch / "large", "wb") as file:
        return file.write(bytes(2 << 20))

answer = {
    "applied": applied,
    "own": [os.geteuid(), os.getcwd(), os.getpid()],
    "processes": sorted(name for name in os.listdir("/proc") if name.isdigit()),
    "root": os.listdir("/"),
    "devices": sorted(os.listdir("/dev")),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
    "read allowed": tried((allowed / "file").read_bytes),
    "read by a link": tried((allowed / "link").read_bytes),
    "write scratch": tried(lambda: (scratch / "new").write_bytes(b"secret")),
    "read scratch": tried((scratch / "new").read_bytes),
    "open null": tried(lambda: open("/dev/null", "wb")),
    "ask for other": tried(other.stat),
    "write allowed": tried(lambda: (allowed / "file").write_bytes(b"x")),
    "create in allowed": tried(lambda: (allowed / "new").write_bytes(b"x")),
    "change mode of allowed": tried(lambda: os.chmod(allowed / "file", 0o600) or True),
    "write to the root": tried(lambda: Path("/new").write_bytes(b"x")),
    "write shared memory": tried(lambda: Path("/dev/shm/new").write_bytes(b"x")),
    "signal outside": tried(lambda: os.kill(outside, 0) or True),
    "connect": tried(connect),
    "attach": tried(attach),
    "fill": tried(fill),
}
print(json.dumps(answer), flush=True)
time.sleep(sleeps)
"""
KEY = 0x5EA1ED


def command(root: Path, port: int, sleeps: int) -> list[str]:
    places = (str(root / name) for name in ("allowed", "other", "scratch"))
    return [sys.executable, "-P", "-c", SCRIPT, *places, str(port), str(KEY), str(sleeps)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("isolated")
    for name in ("allowed", "other", "scratch", "deep"):
        (root / name).mkdir()
    for name in ("allowed", "other", "deep"):
        (root / name / "file").write_bytes(b"content")
    (root / "allowed" / "link").symlink_to("file")
    return root


@pytest.fixture(scope="module")
def isolated(tree: Path) -> dict[str, Any]:
    """What an isolated process found."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = subprocess.run(
            [sys.executable, "-c", f"import ctypes; print(ctypes.CDLL(None).shmget({KEY}, 4096, 0o1600))"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        try:
            done = subprocess.run(
                command(tree, server.getsockname()[1], 0),
                capture_output=True, text=True, timeout=120, check=False, env=environment(),
            )  # fmt: skip
        finally:
            remove = f"import ctypes; ctypes.CDLL(None).shmctl({int(made.stdout)}, 0, None)"
            subprocess.run([sys.executable, "-c", remove], check=True)
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def needs(isolated: dict[str, Any], *names: str) -> dict[str, Any]:
    """The answer, if the kernel permits what it rests on."""
    if lacking := set(names) - set(isolated["applied"]):
        pytest.skip(f"NOT TESTED: this machine does not permit {', '.join(sorted(lacking))}")
    return isolated


def test_only_known_names_are_said(isolated: dict[str, Any]) -> None:
    assert set(isolated["applied"]) <= set(isolation.EVERYTHING)
    assert len(set(isolated["applied"])) == len(isolated["applied"])


def test_what_a_replay_needs_is_there(isolated: dict[str, Any], tree: Path) -> None:
    works = ("read allowed", "read by a link", "write scratch", "read scratch", "open null")
    assert {name: isolated[name] for name in works} == dict.fromkeys(works, "done")
    assert isolated["own"][:2] == [os.geteuid(), str(tree / "scratch")]


def test_there_are_no_other_files_and_none_is_written(isolated: dict[str, Any], tree: Path) -> None:
    """That a file exists is not learned either, which Landlock does not hide."""
    found = needs(isolated, "private-root")
    assert found["ask for other"] == "FileNotFoundError"
    denied = ("write allowed", "create in allowed", "change mode of allowed", "write to the root")
    assert {found[name] for name in denied} == {"OSError"}  # read-only
    assert "home" not in found["root"]
    assert (tree / "allowed" / "file").read_bytes() == b"content"


def test_what_is_written_is_on_no_storage(isolated: dict[str, Any], tree: Path) -> None:
    found = needs(isolated, "memory-scratch")
    assert list((tree / "scratch").iterdir()) == []
    assert found["fill"] == "OSError"


def test_there_are_no_other_processes(isolated: dict[str, Any]) -> None:
    found = needs(isolated, "pid-namespace", "private-proc")
    assert (found["processes"], found["own"][2]) == (["1"], 1)
    assert found["signal outside"] == "ProcessLookupError"


def test_there_is_no_network(isolated: dict[str, Any]) -> None:
    found = needs(isolated, "network-namespace")
    assert found["interfaces"] == ["lo"]
    assert found["connect"] == "OSError"  # its own loopback is down


def test_there_is_no_shared_memory_of_others(isolated: dict[str, Any]) -> None:
    found = needs(isolated, "ipc-namespace", "private-dev")
    assert (found["attach"], found["write shared memory"]) == ("FileNotFoundError", "FileNotFoundError")
    assert found["devices"] == ["full", "null", "random", "urandom", "zero"]


def test_memory_is_not_dumped(isolated: dict[str, Any]) -> None:
    assert needs(isolated, "not-dumpable")["dumpable"] == 0


def test_the_worker_ends_with_the_process_that_waits_for_it(isolated: dict[str, Any], tree: Path) -> None:
    needs(isolated, "pid-namespace")
    outside = subprocess.Popen(
        command(tree, 1, 600), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
    )
    assert outside.stdout is not None
    assert outside.stdout.readline()
    (inside,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
    outside.send_signal(signal.SIGKILL)
    outside.wait()
    assert outside.stdout.read() == b""  # its last holder is gone
    deadline = time.monotonic() + 30
    while Path(f"/proc/{inside}/cmdline").exists() and Path(f"/proc/{inside}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_links_on_the_way_are_kept(tree: Path) -> None:
    """What a path leads to is shown, and the path leads to it: also through links, and below other paths shown."""
    (tree / "first").symlink_to("second")
    (tree / "second").symlink_to(tree / "deep")
    script = (
        "import sys; from pathlib import Path; from weighbridge.execution.workers import confinement, isolation;"
        "paths = [Path(each) for each in sys.argv[2:]];"
        "applied = isolation.enter([*confinement.program_paths(), *paths], Path(sys.argv[1]));"
        "print('private-root' in applied, [path.read_text() for path in paths])"
    )
    paths = [tree / "first" / "file", tree / "deep", tree / "deep" / "file"]
    script = script.replace("path.read_text() for path in paths", "path.read_text() for path in (paths[0], paths[2])")
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, str(tree / "scratch"), *map(str, paths)],
        capture_output=True, text=True, check=True, env=environment(),
    )  # fmt: skip
    if done.stdout.startswith("False"):
        pytest.skip("NOT TESTED: this machine does not permit private-root")
    assert done.stdout == "True ['content', 'content']\n"
