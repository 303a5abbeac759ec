"""Recordings that many tests need: made once in a session, by whichever worker needs one first, and shared by all.

A recording lies under a key: its recipe, the parameters, the versions of what records, and the digest of the rule
table. The store is part of the session's temporary directory. It is never committed and never outlives the session,
because a recording that an older Recorder made would hide what is wrong with today's.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import torch

from weighbridge.numerics.rule_table import table_digest

Contents = dict[str, tuple[int, int]]


class RecordingStore:
    """Recordings by recipe, in a directory that all workers of a session share."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def get(self, recipe: str, make: Callable[[Path], object], *parameters: object) -> Path:
        """Returns where a recording lies; it must not be changed (`copy` gives one that may be).

        Args:
            recipe: Names it.
            make: Records into a path that does not exist yet. It follows from `recipe` and `parameters`.
            parameters: Whatever else it depends on.

        Raises:
            RuntimeError: A test changed the recording since it was made.
        """
        place = self._root / _key(recipe, parameters)
        run = place / recipe
        with (self._root / f"{place.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            marker = place / "contents"
            if not marker.exists():
                shutil.rmtree(place, ignore_errors=True)  # a worker was killed while it recorded
                place.mkdir()
                make(run)
                marker.write_text(repr(_contents(run)))
            elif marker.read_text() != repr(_contents(run)):
                raise RuntimeError(f"a test changed the shared recording {recipe!r}; let it work on a copy")
        return run

    def copy(self, recipe: str, make: Callable[[Path], object], target: Path, *parameters: object) -> Path:
        """Returns `target` after copying a recording there."""
        shutil.copytree(self.get(recipe, make, *parameters), target)
        return target


def _key(recipe: str, parameters: tuple[object, ...]) -> str:
    made_by = (torch.__version__, version("weighbridge"), table_digest())
    return sha256(repr((recipe, parameters, made_by)).encode()).hexdigest()[:24]


def _contents(run: Path) -> Contents:
    files = (path for path in sorted(run.rglob("*")) if path.is_file())
    return {str(path.relative_to(run)): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}
