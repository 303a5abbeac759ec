"""What a replay worker can no longer do once it is confined, tried out in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seccomp and Landlock are Linux's")

SCRIPT = """
import json, os, resource, socket, subprocess, sys, tempfile
from pathlib import Path
import torch
from weighbridge.execution.workers import confinement

allowed, other, scratch = (Path(a) for a in sys.argv[1:])
before = socket.socketpair()
applied = confinement.limit_resources(1 << 30, 50, address_space=True)
applied += confinement.restrict_files([*confinement.program_paths(), allowed], scratch)
applied += confinement.deny_system_calls(allow_exec=False)

def tried(action):
    try:
        action()
    except BaseException as error:
        return type(error).__name__
    return "done"

def connect():
    before[0].connect("/tmp/nobody")

def spawn():
    child = os.fork()
    if child == 0:
        try:
            os.execv("/bin/true", ["/bin/true"])
        except OSError:
            os._exit(77)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 77:
        raise PermissionError

results = {
    "read allowed": tried((allowed / "file").read_bytes),
    "write allowed": tried(lambda: (allowed / "file").write_bytes(b"x")),
    "create in allowed": tried(lambda: (allowed / "new").write_bytes(b"x")),
    "delete allowed": tried((allowed / "file").unlink),
    "list allowed": tried(lambda: list(allowed.iterdir())),
    "read other": tried((other / "file").read_bytes),
    "list other": tried(lambda: list(other.iterdir())),
    "read through a link": tried((allowed / "link").read_bytes),
    "write scratch": tried(lambda: (scratch / "new").write_bytes(b"x")),
    "read scratch": tried((scratch / "new").read_bytes),
    "open null": tried(lambda: open("/dev/null", "wb").write(b"x")),
    "socket": tried(socket.socket),
    "unix socket": tried(lambda: socket.socket(socket.AF_UNIX)),
    "connect": tried(connect),
    "exec": tried(spawn),
    "subprocess": tried(lambda: subprocess.run(["/bin/true"], check=True)),
    "kill parent": tried(lambda: os.kill(os.getppid(), 0)),
    "allocate little": tried(lambda: torch.zeros(1 << 20)),
    "allocate much": tried(lambda: torch.zeros(1 << 32)),
    "compute": tried(lambda: torch.ones(64, 64) @ torch.ones(64, 64)),
    "import": tried(lambda: __import__("xml.dom.minidom")),
}
core, seconds = resource.getrlimit(resource.RLIMIT_CORE)[0], resource.getrlimit(resource.RLIMIT_CPU)[0]
print(json.dumps({"applied": applied, "results": results, "core": core, "seconds": seconds}))
"""


@pytest.fixture(scope="module")
def confined(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a confined process managed to do."""
    root = tmp_path_factory.mktemp("confined")
    for name in ("allowed", "other", "scratch"):
        (root / name).mkdir()
    for name in ("allowed", "other"):
        (root / name / "file").write_bytes(b"content")
    (root / "allowed" / "link").symlink_to(root / "other" / "file")
    command = [sys.executable, "-c", SCRIPT, *(str(root / name) for name in ("allowed", "other", "scratch"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (root / "allowed" / "file").read_bytes() == b"content" or "no-other-files" not in answer["applied"]
    return answer


def needs(confined: dict[str, Any], restriction: str) -> dict[str, str]:
    """The results, if the kernel has what they rest on."""
    if restriction not in confined["applied"]:
        pytest.skip(f"this kernel does not give {restriction}")
    results: dict[str, str] = confined["results"]
    return results


def test_what_a_replay_needs_still_works(confined: dict[str, Any]) -> None:
    works = ("read allowed", "list allowed", "write scratch", "read scratch", "open null", "compute", "import")
    assert {name: confined["results"][name] for name in (*works, "allocate little")} == dict.fromkeys(
        (*works, "allocate little"), "done"
    )


def test_there_is_no_network(confined: dict[str, Any]) -> None:
    results = needs(confined, "no-network")
    assert {results[name] for name in ("socket", "unix socket", "connect")} == {"PermissionError"}


def test_no_new_program_starts(confined: dict[str, Any]) -> None:
    results = needs(confined, "no-new-programs")
    assert {results[name] for name in ("exec", "subprocess")} == {"PermissionError"}


def test_no_other_process_is_reached(confined: dict[str, Any]) -> None:
    assert needs(confined, "no-other-processes")["kill parent"] == "PermissionError"


def test_no_other_file_is_read_and_none_is_written(confined: dict[str, Any]) -> None:
    results = needs(confined, "no-other-files")
    denied = ("read other", "list other", "read through a link", "write allowed", "create in allowed", "delete allowed")
    assert {name: results[name] for name in denied} == dict.fromkeys(denied, "PermissionError")


def test_memory_and_time_are_limited(confined: dict[str, Any]) -> None:
    results = needs(confined, "memory")
    assert results["allocate much"] == "RuntimeError"
    assert (confined["core"], confined["seconds"]) == (0, 50)


def test_the_program_may_read_itself_and_nothing_of_a_home() -> None:
    from weighbridge.execution.workers.confinement import program_paths

    paths = program_paths()
    assert Path(sys.base_prefix).resolve() in paths
    assert Path("/") not in paths
    assert Path.home() not in paths
