"""What a party decided and may not decide again otherwise: a file of its own, which also two processes at once obey.

A line for each subject: the subject and what was decided, in hex. A line that is none is damage, and damage takes no
more decisions: to guess that a subject is new would permit a second decision.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from weighbridge.core import durable
from weighbridge.core.errors import UsageError

_LIMIT = 64 << 20


def decide(book: Path, subject: bytes, choice: bytes) -> bool:
    """Remembers a decision, durably, before it is acted upon.

    Args:
        book: The file; made if missing. A symbolic link stands for what it leads to.
        subject: What is decided.
        choice: How. The same once more does no harm.

    Returns:
        Whether it may be acted upon: false if this subject was decided otherwise.

    Raises:
        UsageError: The file cannot be read or written, or is damaged.
    """
    place = Path(os.path.realpath(book))
    line = f"{subject.hex()} {choice.hex()}\n".encode()
    try:
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            known = _parsed(place, file.read(_LIMIT + 1))
            if subject in known:
                return known[subject] == choice
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        durable.sync(place.parent)
    except OSError as error:
        raise UsageError(f"cannot use {place} ({error.strerror}); it keeps what was decided already") from None
    return True


def _parsed(place: Path, data: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for line in data.splitlines(keepends=True):
        try:
            subject, choice = map(bytes.fromhex, line.decode("ascii").split(" "))
        except ValueError:
            subject, choice = b"", b""
        if not subject or f"{subject.hex()} {choice.hex()}\n".encode() != line or subject in found:
            raise UsageError(f"{place} is damaged; restore it from a copy: it keeps what was decided already")
        found[subject] = choice
    if len(data) > _LIMIT:
        raise UsageError(f"{place} is larger than such a file gets; restore it from a copy")
    return found
