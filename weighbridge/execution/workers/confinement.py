"""Confines the replay worker: limits on memory and time, no network, no new programs, no files but the transcript's.

An allow-list of operations is no sandbox, so the process that runs a Prover's tape gives up what it does not need
before it reads the first byte of it. On Linux this uses resource limits, a seccomp filter and Landlock; each is applied
where the kernel has it, and the list of those in force travels in the replay's result, so a report can say what was in
force. Nothing here needs privileges. What is left to a confined process: its own time and memory, the scratch
directory, and to ask whether a file exists, how large it is and what its mode is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import struct
import sys
from pathlib import Path

from weighbridge.execution.fork_server import end_with_parent
from weighbridge.execution.workers import system_calls

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_FILTER = 38, 22, 2

_CAPABILITIES = 0x20080522
"""`_LINUX_CAPABILITY_VERSION_3`."""
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_VERSION = 1
"""`LANDLOCK_CREATE_RULESET_VERSION`."""
_FS_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""How many rights over files a version of Landlock has, from the version that brought them on."""
_FS_READ = (1 << 0) | (1 << 2) | (1 << 3)  # execute (mapping libraries), read files, read directories
_WRITE, _LIST, _CONTROL = 1 << 1, 1 << 3, 1 << 15  # files, directories, devices
_NET_ALL, _SCOPES = 3, 3  # TCP; abstract sockets and signals
_NET_SINCE, _SCOPES_SINCE = 4, 6

_DEVICES = ("null", "zero", "full", "random", "urandom")
_ACCELERATORS = ("nvidia*", "nvidia-caps/*", "kfd", "dri/*")
"""Devices of GPUs below /dev, which their drivers open."""
_TABLES = ("self", "thread-self", "cpuinfo", "meminfo", "stat", "filesystems", "version", "sys/vm", "sys/kernel")
"""What libraries read below /proc: nothing of it is of another process."""
_ACCELERATOR_TABLES = ("devices", "modules", "driver")


def limit_resources(memory_bytes: int, seconds: int, *, address_space: bool) -> list[str]:
    """Limits memory, processor time and core dumps of this process, and ends it with the one that started it.

    Args:
        memory_bytes: Address space beyond what is in use now, and the largest file.
        seconds: Processor time.
        address_space: Whether to limit the address space; CUDA reserves far more than it uses, so it cannot be limited
            there.
    """
    applied = []
    if address_space and sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, used + memory_bytes))
        applied.append("memory")
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if address_space:
        resource.setrlimit(resource.RLIMIT_FSIZE, (memory_bytes, memory_bytes))
    if sys.platform == "linux":
        # The process that waits for the answer may be killed; nothing else would end this one then.
        end_with_parent()
        if os.environ.get("WEIGHBRIDGE_PARENT", str(os.getppid())) != str(os.getppid()):
            os._exit(1)  # it was killed before the line above
        with contextlib.suppress(OSError):  # If memory runs out, this process shall be killed and not who started it.
            Path("/proc/self/oom_score_adj").write_text("1000")
    return [*applied, "processor-time"]


def deny_system_calls(*, allow_exec: bool) -> list[str]:
    """Denies what a replay has no use for, by a seccomp filter (`system_calls`).

    Denied are sockets, reaching into other processes, changes of modes, times and lengths of files, namespaces, mounts
    and the settings of the machine.

    Args:
        allow_exec: Leave new processes and programs alone (a CUDA compiler may have to be started).
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in system_calls.ARCHITECTURES:
        return []
    program = system_calls.program(machine, os.getpid(), allow_programs=allow_exec)
    code = ctypes.create_string_buffer(program)
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return []
    if not allow_exec:  # what root may do beyond its own files; others have no capabilities to lose
        libc.capset(ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITIES, 0)), ctypes.create_string_buffer(24))
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, header, 0, 0) != 0:
        return []
    return ["no-network", "no-other-processes", "no-changed-modes"] + ([] if allow_exec else ["no-new-programs"])


def restrict_files(readable: list[Path], scratch: Path, *, accelerator: bool = False) -> list[str]:
    """Restricts file access by Landlock: reading below `readable`, writing to devices and the scratch directory.

    Of /dev a few files are left, and of /proc the process's own directory and tables of the machine: other processes'
    environments and shared memory are out of reach.

    Args:
        readable: Existing files or directories.
        scratch: A private directory that goes with the process.
        accelerator: Leave the devices of GPUs, and what their drivers read below /proc.
    """
    if sys.platform != "linux":
        return []
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return []
    everything = (1 << max(count for since, count in _FS_RIGHTS.items() if since <= version)) - 1
    handled = [everything]
    handled += [_NET_ALL] if version >= _NET_SINCE else []
    handled += [_SCOPES] if version >= _SCOPES_SINCE else []
    attributes = ctypes.create_string_buffer(struct.pack(f"{len(handled)}Q", *handled))
    ruleset = libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(8 * len(handled)), 0)
    if ruleset < 0:
        return []
    rules = [(path, _FS_READ) for path in readable]
    rules += [(Path("/proc", name), _FS_READ) for name in (*_TABLES, *(_ACCELERATOR_TABLES if accelerator else ()))]
    rules += [(Path("/dev", name), _FS_READ | _WRITE) for name in _DEVICES]
    if accelerator:
        rules += [(p, _FS_READ | _WRITE | _CONTROL) for name in _ACCELERATORS for p in Path("/dev").glob(name)]
    for path, rights in [*rules, (scratch, everything)]:
        if not path.exists():
            continue
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = (rights if path.is_dir() else rights & ~_LIST) & everything
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, descriptor))
        libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0)
        os.close(descriptor)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    done = libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0
    os.close(ruleset)
    return ["no-other-files"] if done else []


def program_paths() -> list[Path]:
    """Returns what a running Python needs to read: its own installation, and system libraries."""
    paths = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix, *sys.path) if p}
    paths.add(Path(__file__).resolve().parents[2])  # an editable installation lies elsewhere
    paths |= {Path(p) for p in ("/usr", "/lib", "/lib64", "/sys", "/etc/ld.so.cache")}
    return sorted(p for p in paths if p.exists() and p != Path("/"))
