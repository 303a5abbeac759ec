"""Recordings that have no manifest yet: still going, or cut off by a crash and waiting to be resumed.

What is whole of them can be declared already, so that their snapshots are not unexplained: a copy (of links, not of
data) is closed as `weighbridge recover` would close the recording, which itself is left alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import walk_files
from weighbridge.core.errors import WeighbridgeError
from weighbridge.transcript.journal import JOURNAL
from weighbridge.transcript.placing import TEMPORARY
from weighbridge.transcript.reader import recover
from weighbridge.transcript.writer import DRAFT, MANIFEST

_ATTEMPTS = 3
_MAX_FILES = 1 << 20


def recordings(root: Path, depth: int) -> Iterator[Path]:
    """Yields the directories of recordings without a manifest, at most `depth` levels below `root`."""
    if (root / MANIFEST).is_file():
        return
    if (root / DRAFT).is_file():
        yield root
    elif depth:
        for child in sorted(root.iterdir()):
            if child.is_dir() and not child.is_symlink() and not child.name.startswith("."):
                yield from recordings(child, depth - 1)


def progress(run: Path) -> tuple[str, ...]:
    """Returns what changes when a recording gets further: the names of its segments and of its steps in the journal."""
    names: list[str] = []
    for folder in ("steps", JOURNAL):
        if (run / folder).is_dir():
            names += sorted(name for name in os.listdir(run / folder) if not name.endswith(TEMPORARY))
    return tuple(names)


def close_copy(run: Path, into: Path, key: SigningKey) -> bool:
    """Makes a transcript of the whole steps of a recording, which may go on meanwhile.

    Args:
        run: The recording.
        into: Directory for the transcript, on the same file system; must not exist.
        key: Signs it.

    Returns:
        Whether there is one now. A recording that changes under each attempt has none this time.
    """
    for _ in range(_ATTEMPTS):
        try:
            _link(run, into)
            recover(into, key=key)
        except (OSError, WeighbridgeError):
            shutil.rmtree(into, ignore_errors=True)
            continue
        return True
    return False


def _link(run: Path, into: Path) -> None:
    """Links all files. Steps leave the journal for a segment, never the other way, so the journal comes first."""
    names = [name for name, _ in walk_files(run, max_files=_MAX_FILES) if not name.endswith(TEMPORARY)]
    names = [name for name in names if name != MANIFEST]
    for name in sorted(names, key=lambda name: not name.startswith(f"{JOURNAL}/")):
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(run / name, target)
        except FileNotFoundError:
            if not name.startswith(f"{JOURNAL}/"):
                raise
    # What was written while the journal was read: segments that its steps went to.
    for name, _ in walk_files(run, max_files=_MAX_FILES):
        if name not in names and not name.endswith(TEMPORARY) and name != MANIFEST:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(run / name, into / name)
