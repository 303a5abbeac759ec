"""What a crash must not take back: content of files, and which files there are in a directory."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Returns once the operating system has made a file's content, or a directory's list of files, durable.

    Raises:
        OSError: There is no such file or directory, or it cannot be made durable.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
