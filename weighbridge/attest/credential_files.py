"""The files of credentials: written so that no reader sees a part of one, and no other user a key."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from weighbridge.core import secret_files
from weighbridge.core.errors import IdentityError

REVOCATIONS = "revocations.pem"
"""The authority's list of revoked certificates, beside its certificate and in every directory of credentials."""

CREDENTIALS = ("certificate.pem", "key.pem", "authority.pem", REVOCATIONS)
"""What a directory of credentials holds."""


def write_files(directory: Path, files: dict[str, bytes]) -> None:
    """Writes files into a directory, replacing former ones; names with `key` in them are readable by the owner only.

    A reader sees each file as it was or as it is now, never a part.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        secret_files.write(directory / name, content, 0o600 if "key" in name else 0o644)


def file_stamp(directory: Path) -> tuple[tuple[int, ...] | None, ...]:
    """Returns what changes when a file of credentials in a directory is written or replaced; None for a missing one."""
    found: list[tuple[int, ...] | None] = []
    for name in CREDENTIALS:
        try:
            status = os.stat(directory / name)
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


def read_files(directory: Path, names: Iterable[str]) -> list[bytes]:
    """Reads files of a directory.

    Raises:
        IdentityError: One is missing or unreadable.
        UsageError: Others may read one with `key` in its name.
    """
    paths = [directory / name for name in names]
    try:
        secret_files.require_private(*(path for path in paths if "key" in path.name))
        return [path.read_bytes() for path in paths]
    except OSError as error:
        raise IdentityError(f"Cannot read {error.filename}; give the directory that holds the certificate.") from error
