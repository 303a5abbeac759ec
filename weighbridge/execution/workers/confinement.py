"""Confines the replay worker: limits on memory and time, no network, no new programs, no files but the transcript's.

An allow-list of operations is no sandbox, so the process that runs a Prover's tape gives up what it does not need
before it reads the first byte of it. On Linux this uses resource limits, a seccomp filter and Landlock; each is applied
where the kernel has it, and the list of those in force travels in the replay's result, so a report can say what was in
force. Nothing here needs privileges.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_FILTER = 1, 38, 22, 2
_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with EPERM

# socket, connect, bind, execve, execveat, ptrace, process_vm_readv, process_vm_writev, kill, bpf, keyctl,
# io_uring_setup, tkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal
_DENIED = {
    "x86_64": (0xC000003E, (41, 42, 49, 59, 322, 101, 310, 311, 62, 321, 250, 425, 200, 129, 297, 424)),
    "aarch64": (0xC00000B7, (198, 203, 200, 221, 281, 117, 270, 271, 129, 280, 219, 425, 130, 138, 240, 424)),
}
_TGKILL = {"x86_64": 234, "aarch64": 131}
"""Allowed to the process itself: it is how `abort` ends one."""
_EXEC = {59, 322, 221, 281}

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_FS_ALL = (1 << 13) - 1  # every right of Landlock ABI 1
_FS_READ = (1 << 0) | (1 << 2) | (1 << 3)  # execute (mapping libraries), read files, read directories


def limit_resources(memory_bytes: int, seconds: int, *, address_space: bool) -> list[str]:
    """Limits memory, processor time and core dumps of this process, and ends it with the one that started it.

    Args:
        memory_bytes: Address space beyond what is in use now.
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
    if sys.platform == "linux":
        # The process that waits for the answer may be killed; nothing else would end this one then.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.environ.get("WEIGHBRIDGE_PARENT", str(os.getppid())) != str(os.getppid()):
            os._exit(1)  # it was killed before the line above
        with contextlib.suppress(OSError):  # If memory runs out, this process shall be killed and not who started it.
            Path("/proc/self/oom_score_adj").write_text("1000")
    return [*applied, "processor-time"]


def deny_system_calls(*, allow_exec: bool) -> list[str]:
    """Denies sockets, new programs, and reaching into other processes, by a seccomp filter.

    Args:
        allow_exec: Leave `execve` alone (a CUDA compiler may have to be started).
    """
    known = _DENIED.get(platform.machine())
    if sys.platform != "linux" or known is None:
        return []
    architecture, numbers = known
    denied = [n for n in numbers if not (allow_exec and n in _EXEC)]

    def op(code: int, jt: int, jf: int, k: int) -> bytes:
        return struct.pack("HBBI", code, jt, jf, k)

    program = [op(0x20, 0, 0, 4), op(0x15, 1, 0, architecture), op(0x06, 0, 0, _DENY), op(0x20, 0, 0, 0)]
    if platform.machine() == "x86_64":
        program += [op(0x35, 0, 1, 0x40000000), op(0x06, 0, 0, _DENY)]  # the x32 numbering would get around the list
    for number in denied:
        program += [op(0x15, 0, 1, number), op(0x06, 0, 0, _DENY)]
    # To whom the signal goes is the first argument, whose low half lies 16 bytes into what the filter sees.
    program += [op(0x15, 0, 4, _TGKILL[platform.machine()]), op(0x20, 0, 0, 16), op(0x15, 1, 0, os.getpid())]
    program += [op(0x06, 0, 0, _DENY), op(0x06, 0, 0, _ALLOW)]
    program.append(op(0x06, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return []
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, header, 0, 0) != 0:
        return []
    return ["no-network", "no-other-processes"] + ([] if allow_exec else ["no-new-programs"])


def restrict_files(readable: list[Path], scratch: Path) -> list[str]:
    """Restricts file access by Landlock: reading below `readable`, writing to devices and the scratch directory.

    Args:
        readable: Existing files or directories.
        scratch: A private directory that goes with the process.
    """
    if sys.platform != "linux":
        return []
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = ctypes.create_string_buffer(struct.pack("Q", _FS_ALL))
    ruleset = libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return []
    devices = Path("/dev")
    for path, rights in [(p, _FS_READ) for p in readable] + [(devices, _FS_READ | (1 << 1)), (scratch, _FS_ALL)]:
        if not path.exists():
            continue
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = rights if path.is_dir() else rights & ~(1 << 3)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, descriptor))
        libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0)
        os.close(descriptor)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    done = libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0
    os.close(ruleset)
    return ["no-other-files"] if done else []


def program_paths() -> list[Path]:
    """Returns what a running Python needs to read: its own installation, system libraries, and the kernel's tables."""
    paths = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix, *sys.path) if p}
    paths.add(Path(__file__).resolve().parents[2])  # an editable installation lies elsewhere
    paths |= {Path(p) for p in ("/usr", "/lib", "/lib64", "/proc", "/sys", "/etc/ld.so.cache")}
    return sorted(p for p in paths if p.exists() and p != Path("/"))
