"""Puts a worker into namespaces of its own: no other process, network, file system or device is there to be reached.

`confinement` forbids a process what it must not do; here it is shown a machine that has nothing else. The worker gets
user, mount, pid, network and ipc namespaces, and a file system in memory that holds the paths it may read, a `/proc` of
its own processes, a few devices and a scratch directory in memory. Where a kernel or a container forbids one of these,
the worker does without; what is in force is returned by name. A *sealed* worker is not started without all of them.

A process enters a pid namespace only by forking. So the process that calls `enter` waits there for its child, which
returns in its place, and ends as the child ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from weighbridge.execution.fork_server import PARENT, end_with_parent

_USER, _MOUNT, _PROCESS, _NETWORK, _IPC = 0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000
_NAMESPACES = {
    "mount-namespace": _MOUNT, "pid-namespace": _PROCESS, "network-namespace": _NETWORK, "ipc-namespace": _IPC,
}  # fmt: skip
_NOSUID, _NODEV, _NOEXEC, _BIND, _RECURSIVE, _PRIVATE, _DETACH = 2, 4, 8, 4096, 16384, 1 << 18, 2
_PR_SET_DUMPABLE = 4
_MOUNT_SETATTR = 442
_HERE, _ALL_BELOW = -100, 0x8000
"""`AT_FDCWD` and `AT_RECURSIVE`."""
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = 40
"""So many symbolic links one path may lead through, as in the kernel."""

SCRATCH_BYTES = 1 << 30
"""So large a worker's scratch directory in memory may become."""

EVERYTHING = (
    "user-namespace", "network-namespace", "mount-namespace", "pid-namespace", "ipc-namespace", "private-root",
    "private-proc", "private-dev", "memory-scratch", "not-dumpable",
)  # fmt: skip
"""What is in force where the kernel permits all of it."""


def enter(
    readable: list[Path],
    scratch: Path,
    *,
    scratch_bytes: int = SCRATCH_BYTES,
    fill: Callable[[Path], None] | None = None,
    root_bytes: int = 1 << 20,
) -> list[str]:
    """Moves this process into namespaces of its own, as far as it may; returns in a child of it, or in itself.

    Args:
        readable: Existing files or directories that stay where they are, and cannot be written.
        scratch: An existing directory; in its place comes one in memory, which ends with the process.
        scratch_bytes: How large that one may become.
        fill: Puts further files below the new root. They lie in memory, and the root can then be written: to forbid
            that is Landlock's.
        root_bytes: How much memory the files in the root may take.

    Returns:
        What is in force, by name.
    """
    if sys.platform != "linux" or len(os.listdir("/proc/self/task")) > 1:  # threads cannot change their user namespace
        return []
    libc = ctypes.CDLL(None, use_errno=True)
    applied = _own_user(libc) + [name for name, flag in _NAMESPACES.items() if libc.unshare(flag) == 0]
    if "pid-namespace" in applied:
        _be_first_process()
    if "mount-namespace" in applied:
        with contextlib.suppress(OSError):
            _private_root(libc, readable, scratch, (scratch_bytes, root_bytes), fill, applied)
    return applied


def hide_memory() -> list[str]:
    """Keeps other processes of this user from reading this one's memory, and the kernel from dumping it.

    From here on the process's own files below `/proc` are root's, so what has to be written there comes before.
    """
    if sys.platform != "linux":
        return []
    return ["not-dumpable"] if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 else []


def _own_user(libc: ctypes.CDLL) -> list[str]:
    """Enters a user namespace in which this process has its own name, and may make the other namespaces."""
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_USER) != 0:
        return []
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError:  # as the nameless user it could not read its own files
        os._exit(1)
    return ["user-namespace"]


def _be_first_process() -> None:
    """Goes on in a child, first of the pid namespace; this process ends as it does, and it ends with this one."""
    end_with_parent()
    if os.environ.get(PARENT, str(os.getppid())) != str(os.getppid()):
        os._exit(1)  # whoever waits for the answer was gone before the line above
    alive, held = os.pipe()
    child = os.fork()
    if child:
        hide_memory()  # its root is the child's, and so would lead others to the child's files
        os.close(alive)
        for standard in range(3):  # the child's alone, so that its reader sees where they end
            os.close(standard)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            with contextlib.suppress(OSError):
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code if code >= 0 else 128 - code)
    os.close(held)
    end_with_parent()
    if select.select([alive], [], [], 0)[0]:
        os._exit(1)  # the process outside was gone before
    os.close(alive)
    os.environ[PARENT] = str(os.getppid())  # 0: it is in no namespace that this process sees


def _private_root(
    libc: ctypes.CDLL,
    readable: list[Path],
    scratch: Path,
    sizes: tuple[int, int],
    fill: Callable[[Path], None] | None,
    applied: list[str],
) -> None:
    """Makes a root that has nothing but what is said, and moves there; on an error all stays as it is.

    Raises:
        OSError: A mount is not permitted.
    """
    _mount(libc, None, Path("/"), None, _RECURSIVE | _PRIVATE)
    root = scratch
    _mount(libc, "tmpfs", root, "tmpfs", _NOSUID | _NODEV, f"size={sizes[1]},mode=755")
    found = []
    try:
        placed: set[Path] = set()
        for path in sorted({each.resolve() for each in readable}):
            if placed.isdisjoint(path.parents):
                _place(libc, path, root)
                placed.add(path)
        for path in readable:
            _link(path, root)
        if fill is not None:
            fill(root)
        _mount(libc, "tmpfs", _made(root, scratch), "tmpfs", _NOSUID | _NODEV, f"size={sizes[0]},mode=700")
        found.append("memory-scratch")
        devices = _made(root, Path("/dev"))
        for name in _DEVICES:
            (devices / name).touch()
            _mount(libc, f"/dev/{name}", devices / name, None, _BIND)
        found.append("private-dev")
        processes = _made(root, Path("/proc"))
        try:
            _mount(libc, "proc", processes, "proc", _NOSUID | _NODEV | _NOEXEC)
            found.append("private-proc")
        except OSError:  # a container that hides parts of its own
            _mount(libc, "/proc", processes, None, _BIND | _RECURSIVE)
        os.chdir(root)
        number = _PIVOT_ROOT[os.uname().machine]
        _checked(libc.syscall(number, b".", b"."))
    except (OSError, KeyError) as error:
        os.chdir("/")
        libc.umount2(os.fsencode(root), _DETACH)
        os.chdir(scratch)
        raise OSError("no root of its own") from error
    _checked(libc.umount2(b".", _DETACH))
    os.chdir(scratch)
    with contextlib.suppress(OSError):
        if fill is None:
            _read_only(libc, Path("/"), below=False)
        applied.append("private-root")
    applied += found


def _place(libc: ctypes.CDLL, path: Path, root: Path) -> None:
    """Shows a file or directory, which is no link, at the same place below the new root."""
    inside = root / path.relative_to("/")
    if path.is_dir():
        _made(root, path)
    else:
        _made(root, path.parent)
        inside.touch()
    _mount(libc, str(path), inside, None, _BIND | _RECURSIVE)
    _read_only(libc, inside, below=True)


def _link(path: Path, root: Path) -> None:
    """Copies the links that a path leads through, so that it leads to the same place in the new root.

    Raises:
        OSError: There are too many.
    """
    parts, at, links = list(path.parts[1:]), Path("/"), 0
    while parts:
        at /= parts.pop(0)
        if not at.is_symlink():
            continue
        target, links = at.readlink(), links + 1
        if links > _LINKS:
            raise OSError(f"{path} has too many links")
        inside = root / at.relative_to("/")
        if not inside.is_symlink() and not inside.exists():
            _made(root, at.parent)
            inside.symlink_to(target)
        parts, at = [*Path(os.path.normpath(at.parent / target)).parts[1:], *parts], Path("/")


def _made(root: Path, directory: Path) -> Path:
    inside = root / directory.relative_to("/")
    inside.mkdir(parents=True, exist_ok=True)
    return inside


def _read_only(libc: ctypes.CDLL, path: Path, *, below: bool) -> None:
    attributes = ctypes.create_string_buffer(struct.pack("4Q", 1 | _NOSUID, 0, 0, 0))
    size = ctypes.c_size_t(32)
    flags = _ALL_BELOW if below else 0
    _checked(libc.syscall(_MOUNT_SETATTR, _HERE, os.fsencode(path), flags, attributes, size))


def _mount(
    libc: ctypes.CDLL, source: str | None, target: Path, kind: str | None, flags: int, options: str | None = None
) -> None:
    encoded = [None if each is None else each.encode() for each in (source, kind, options)]
    result = libc.mount(encoded[0], os.fsencode(target), encoded[1], ctypes.c_ulong(flags), encoded[2])
    _checked(result)


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
