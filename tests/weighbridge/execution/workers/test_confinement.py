"""What a replay worker can no longer do once it is confined, tried out in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seccomp and Landlock are Linux's")

SCRIPT = """
import ctypes, fcntl, json, os, resource, socket, subprocess, sys, tempfile, threading
from pathlib import Path
import torch
from weighbridge.execution.workers import confinement

allowed, other, scratch, shared = (Path(a) for a in sys.argv[1:])
parent, held = os.getppid(), os.open(allowed / "file", os.O_RDONLY)
libc = ctypes.CDLL(None, use_errno=True)
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

def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "denied")

def of_parent(name):
    return lambda: Path(f"/proc/{parent}/{name}").read_bytes()

def in_thread():
    done = []
    thread = threading.Thread(target=lambda: done.append(torch.ones(8).sum()))
    thread.start()
    thread.join()
    assert done

secret = other / "file"
numbers = dict(zip(["unshare", "chroot", "mount", "shmget", "userfaultfd", "bpf", "io_uring_setup", "pidfd_open",
    "perf_event_open", "add_key", "open_by_handle_at", "kexec_load", "settimeofday", "personality"],
    {"x86_64": [272, 161, 165, 29, 323, 321, 425, 434, 298, 248, 304, 246, 164, 135],
     "aarch64": [97, 51, 40, 194, 282, 280, 425, 434, 241, 217, 265, 104, 170, 92]}[os.uname().machine]))
arguments = {"pidfd_open": (parent, 0), "shmget": (0x5AFE, 4096, 0o1600), "unshare": (0x10000000,),
    "chroot": (ctypes.c_char_p(b"/tmp"),), "personality": (0x0040000,)}
def by_number(name):
    return lambda: call(numbers[name], *arguments.get(name, (0, 0, 0)))

results = {
    **{f"call {name}": tried(by_number(name)) for name in numbers},
    **{f"parent {name}": tried(of_parent(name)) for name in ("environ", "cmdline", "maps", "mem", "status")},
    "parent fd": tried(lambda: os.listdir(f"/proc/{parent}/fd")),
    "list processes": tried(lambda: os.listdir("/proc")),
    "own status": tried(lambda: Path("/proc/self/status").read_bytes()),
    "limit parent": tried(lambda: resource.prlimit(parent, resource.RLIMIT_CPU, (1, 1))),
    "limit itself": tried(lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))),
    "slow parent": tried(lambda: os.setpriority(os.PRIO_PROCESS, parent, 19)),
    "pin parent": tried(lambda: os.sched_setaffinity(parent, {0})),
    "pin itself": tried(lambda: os.sched_setaffinity(0, os.sched_getaffinity(0))),
    "signal through a file": tried(lambda: fcntl.fcntl(held, fcntl.F_SETOWN, parent)),
    "fork": tried(os.fork),
    "thread": tried(in_thread),
    "write shared memory": tried(lambda: shared.write_bytes(b"x")),
    "create shared memory": tried(lambda: shared.with_name(shared.name + "-new").write_bytes(b"x")),
    "empty other": tried(lambda: os.truncate(secret, 0)),
    "open up other": tried(lambda: os.chmod(secret, 0o666)),
    "give away other": tried(lambda: os.chown(secret, os.getuid(), os.getgid())),
    "date other": tried(lambda: os.utime(secret, (0, 0))),
    "label other": tried(lambda: os.setxattr(secret, "user.x", b"1")),
    "mark held": tried(lambda: fcntl.ioctl(held, 0x40086602, bytes(8))),
    "freeze held": tried(lambda: fcntl.ioctl(held, 0xC0045877, 0)),
    "outlive parent": tried(lambda: call({"x86_64": 157, "aarch64": 167}[os.uname().machine], 1, 0)),
    "memory without limit": tried(lambda: os.memfd_create("x")),
    "large file": tried(lambda: os.posix_fallocate(os.open(scratch / "big", os.O_CREAT | os.O_RDWR), 0, 1 << 34)),
    "capabilities": next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("CapEff")),
    "open up held": tried(lambda: os.fchmod(held, 0o666)),
    "empty allowed": tried(lambda: os.truncate(allowed / "file", 0)),
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
    shared = Path("/dev/shm", f"weighbridge-test-{os.getpid()}")
    shared.write_bytes(b"content")
    command = [
        sys.executable,
        "-c",
        SCRIPT,
        *(str(root / name) for name in ("allowed", "other", "scratch")),
        str(shared),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert shared.read_bytes() == b"content" or "no-other-files" not in answer["applied"]
        assert (root / "other" / "file").read_bytes() == b"content" or "no-changed-modes" not in answer["applied"]
    finally:
        shared.unlink()
    assert (root / "allowed" / "file").read_bytes() == b"content" or "no-other-files" not in answer["applied"]
    return answer


def needs(confined: dict[str, Any], restriction: str) -> dict[str, str]:
    """The results, if the kernel has what they rest on."""
    if restriction not in confined["applied"]:
        pytest.skip(f"this kernel does not give {restriction}")
    results: dict[str, str] = confined["results"]
    return results


def test_what_a_replay_needs_still_works(confined: dict[str, Any]) -> None:
    works = (
        "read allowed", "list allowed", "write scratch", "read scratch", "open null", "compute", "import", "thread",
        "own status", "limit itself", "pin itself",
    )  # fmt: skip
    assert {name: confined["results"][name] for name in (*works, "allocate little")} == dict.fromkeys(
        (*works, "allocate little"), "done"
    )


def test_there_is_no_network(confined: dict[str, Any]) -> None:
    results = needs(confined, "no-network")
    assert {results[name] for name in ("socket", "unix socket", "connect")} == {"PermissionError"}


def test_no_new_program_starts(confined: dict[str, Any]) -> None:
    results = needs(confined, "no-new-programs")
    assert {results[name] for name in ("exec", "subprocess", "fork", "memory without limit")} == {"PermissionError"}
    assert int(results["capabilities"].partition(":")[2], 16) == 0


def test_no_other_process_is_reached(confined: dict[str, Any]) -> None:
    results = needs(confined, "no-other-processes")
    denied = ("outlive parent", "kill parent", "limit parent", "slow parent", "pin parent", "signal through a file")
    assert {name: results[name] for name in denied} == dict.fromkeys(denied, "PermissionError")


def test_calls_that_no_replay_makes_are_denied(confined: dict[str, Any]) -> None:
    results = needs(confined, "no-other-processes")
    calls = {name: result for name, result in results.items() if name.startswith("call ")}
    assert len(calls) == 14
    assert set(calls.values()) == {"PermissionError"}, calls


def test_no_other_file_is_read_and_none_is_written(confined: dict[str, Any]) -> None:
    results = needs(confined, "no-other-files")
    denied = (
        "read other", "list other", "read through a link", "write allowed", "create in allowed", "delete allowed",
        "write shared memory", "create shared memory",
    )  # fmt: skip
    assert {name: results[name] for name in denied} == dict.fromkeys(denied, "PermissionError")


def test_nothing_is_read_of_another_process(confined: dict[str, Any]) -> None:
    """Its environment may hold passwords."""
    results = needs(confined, "no-other-files")
    denied = [name for name in results if name.startswith("parent ")]
    assert len(denied) == 6
    assert {results[name] for name in (*denied, "list processes")} == {"PermissionError"}


def test_no_length_mode_owner_or_time_of_a_file_is_changed(confined: dict[str, Any]) -> None:
    """Landlock says nothing about these calls (truncation before its third version), whoever owns the file."""
    results = needs(confined, "no-changed-modes")
    denied = [name for name in results if name.endswith((" other", " held")) and not name.startswith(("read", "list"))]
    assert len(denied) == 8
    assert {results[name] for name in (*denied, "empty allowed")} == {"PermissionError"}


def test_memory_and_time_are_limited(confined: dict[str, Any]) -> None:
    results = needs(confined, "memory")
    assert results["allocate much"] == "RuntimeError"
    assert results["large file"] == "OSError"
    assert (confined["core"], confined["seconds"]) == (0, 50)


def test_the_program_may_read_itself_and_nothing_of_a_home() -> None:
    from weighbridge.execution.workers.confinement import program_paths

    paths = program_paths()
    assert Path(sys.base_prefix).resolve() in paths
    assert Path("/") not in paths
    assert Path.home() not in paths
