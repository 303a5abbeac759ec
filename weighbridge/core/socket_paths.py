"""Unix sockets under paths of any length: the operating system takes some hundred bytes of a path, and no more."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LONGEST = 100
"""Bytes; Linux allows 107 and macOS 103."""


@contextmanager
def short_path(path: Path) -> Iterator[Path]:
    """Yields a path of the same socket that `bind` and `connect` take, for as long as the block lasts.

    Args:
        path: Of the socket, which need not exist; its directory must.

    Raises:
        OSError: No temporary directory can be made.
    """
    if len(os.fsencode(path)) <= _LONGEST:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="weighbridge-") as temporary:
        link = Path(temporary) / "d"
        link.symlink_to(path.parent.absolute(), target_is_directory=True)
        yield link / path.name
