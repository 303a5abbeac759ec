"""Files that hold secrets: made so that only their owner may read them, and refused if others may."""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path

from weighbridge.core import durable
from weighbridge.core.errors import UsageError

_OTHERS = 0o077
"""Permissions of the group and of all others."""
_PUBLIC = 0o644


def keep_to_owner() -> None:
    """Lets this process make no file from now on that others may read, except by `publish`: for services."""
    os.umask(_OTHERS)


def require_private(*paths: Path) -> None:
    """Checks that others may not read files; those that do not exist are no secret yet.

    Raises:
        UsageError: They may; the message says what to type.
    """
    found = [path for path in paths if path.exists() and path.stat().st_mode & _OTHERS]
    if found:
        names = shlex.join(map(str, found))
        raise UsageError(f"others may read {names}; type `chmod 600 {names}`, and replace what may have leaked")


def make_private(*paths: Path) -> list[Path]:
    """Takes the permissions of others away; returns the files that had some."""
    found = [path for path in paths if path.exists() and path.stat().st_mode & _OTHERS]
    for path in found:
        path.chmod(path.stat().st_mode & ~_OTHERS)
    return found


def read_or_make(path: Path, make: Callable[[], bytes]) -> bytes:
    """Returns what is in a file that only its owner may read; makes it whole and durably if there is none.

    Args:
        path: Where it is.
        make: Returns its content if it is new.

    Raises:
        UsageError: Others may read it.
        OSError: It cannot be made or read.
    """
    if not path.exists():
        descriptor, partial = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(make())
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # another process was faster
                os.link(partial, path)
        finally:
            os.unlink(partial)
    require_private(path)
    return path.read_bytes()


def write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Writes a file durably in place of the one that is there; a reader sees all of it or nothing.

    Args:
        path: Where it is.
        content: Its content.
        mode: Set as the file is created, so that no other user reads a secret, however briefly.

    Raises:
        OSError: It cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    durable.sync(path.parent)


def publish(path: Path, text: str) -> None:
    """Writes a file that is for others, whatever `keep_to_owner` says; a reader sees all of it or nothing.

    Raises:
        OSError: It cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.chmod(_PUBLIC)
    partial.replace(path)
