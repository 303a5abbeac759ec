"""Placing the files of a transcript: each appears under its name only when it is complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from weighbridge.core.bounded import file_digest
from weighbridge.core.durable import sync
from weighbridge.core.errors import TranscriptError

TEMPORARY = ".tmp"


class Files:
    """The files that one thread writes into a transcript's directory.

    Attributes:
        listed: Path to (bytes, hex digest) of those that the manifest will list.
    """

    def __init__(self, root: Path, dirty: Iterable[Path] = ()) -> None:
        """Places nothing yet.

        Args:
            root: The directory.
            dirty: Files of others that `flush` makes durable too.
        """
        self._root = root
        self.listed: dict[str, tuple[int, str]] = {}
        self._dirty = list(dirty)

    def place(self, path: str, write: Callable[[Path], None]) -> Path:
        """Writes a file under a temporary name and renames it when it is complete.

        Raises:
            TranscriptError: The operating system refuses it.
        """
        target = self._root / path
        temporary = target.with_name(target.name + TEMPORARY)
        try:
            target.parent.mkdir(exist_ok=True)
            write(temporary)
            os.replace(temporary, target)
        except OSError as error:
            raise TranscriptError(
                f"cannot write {path} ({error.strerror}); make room, then close or recover the transcript",
                code="transcript.write",
            ) from None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        self._dirty.append(target)
        return target

    def publish(self, path: str, write: Callable[[Path], None]) -> None:
        """Places a file that the manifest will list."""
        self.take(path, self.place(path, write))

    def put(self, path: str, content: bytes) -> None:
        """Places bytes as a file that the manifest will list."""
        self.publish(path, partial(write_content, content=content))

    def take(self, path: str, file: Path) -> None:
        """Lists a file that is there."""
        size, digest = file_digest(file)
        self.listed[path] = (size, digest.hex())

    def remove(self, paths: Iterable[str]) -> None:
        """Removes files that are not listed and not needed any more; one that cannot be removed stays."""
        gone = {self._root / path for path in paths}
        for each in gone:
            with contextlib.suppress(OSError):
                each.unlink(missing_ok=True)
        self.forget(gone)

    def dirty(self, *, outside: str) -> list[Path]:
        """Returns the files that `flush` would make durable, but for those in one folder."""
        return [each for each in self._dirty if each.parent.name != outside]

    def forget(self, files: Iterable[Path]) -> None:
        """Takes note that files are gone."""
        gone = set(files)
        self._dirty = [each for each in self._dirty if each not in gone]

    def flush(self) -> None:
        """Makes everything placed so far survive a loss of power; what is gone by now, its successor has made so."""
        folders = {self._root, *(path.parent for path in self._dirty)}
        for path in (*self._dirty, *sorted(folders)):
            with contextlib.suppress(FileNotFoundError):
                sync(path)
        self._dirty.clear()


def write_content(file: Path, content: bytes) -> None:
    """Writes bytes, as `Files.place` has it done."""
    file.write_bytes(content)
