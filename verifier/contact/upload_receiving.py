"""One call of an upload: takes in headers and bytes of files, and leaves what came on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from weighbridge.core.bounded import DEFAULT_LIMITS
from weighbridge.core.digests import bytes_digest
from weighbridge.core.durable import sync
from weighbridge.core.errors import TranscriptError, UsageError
from weighbridge.transcript.writer import MANIFEST


class Receiving:
    """The files of one upload while a call brings more of them; `Uploads.receiving` makes one.

    Attributes:
        root: The upload's directory; it is there once there is a file in it.
        id: Hex digest of the manifest.
        received: Bytes that this call brought.
    """

    def __init__(
        self,
        root: Path,
        identifier: str,
        *,
        table: dict[str, int] | None,
        reserve: Callable[[int], None],
        listed: Callable[[bytes], dict[str, int]],
    ) -> None:
        """Goes on with an upload.

        Args:
            root: Where its files lie.
            identifier: Hex digest of the manifest.
            table: Path to size of each file, if the manifest is there.
            reserve: Makes room for the manifest, given its size.
            listed: Verifies the manifest's bytes, makes room for the other files, and returns the table.
        """
        self.root, self.id, self.received = root, identifier, 0
        self._table, self._reserve, self._listed = table, reserve, listed
        self._file: IO[bytes] | None = None
        self._begun, self._path, self._size, self._held = False, "", 0, 0

    def begin(self, path: str, size: int, offset: int) -> None:
        """Begins a file, or goes on with it.

        Args:
            path: Which one; the manifest comes first.
            size: Bytes of all of it.
            offset: Bytes that are here.

        Raises:
            UsageError: It is not allowed, not listed, or not of the listed size (`transcript.upload.path`), or too
                large (`transcript.upload.oversized`); or it does not begin where it must (`transcript.upload.order`).
            WeighbridgeError: The manifest does not verify, or there is no room.
        """
        self._end_file()
        if self._table is None:
            if path != MANIFEST:
                raise order(f"{MANIFEST} comes first, before {path[:100]!r}")
            if size > DEFAULT_LIMITS.manifest:
                raise UsageError(
                    f"{MANIFEST} is larger than {DEFAULT_LIMITS.manifest} bytes; record with fewer files",
                    code="transcript.upload.oversized",
                )
        elif self._table.get(path) != size:
            raise UsageError(
                f"the manifest lists no file under the path {path[:100]!r} with {size} bytes; upload what it lists",
                code="transcript.upload.path",
            )
        place = self.root / path
        try:
            held = place.stat().st_size if place.exists() else 0
            if offset != held or held > size:
                raise order(f"{held} bytes of {path[:100]} are here, and bytes from {offset} on of {size} are to come")
            if self._table is None:
                self._reserve(size)
        except OSError as error:
            raise cannot_write(path, error) from None
        self._begun, self._path, self._size, self._held = True, path, size, held

    def write(self, data: bytes) -> None:
        """Writes the next bytes of the file that was begun.

        Raises:
            UsageError: None was, or it has more bytes than were declared.
            TranscriptError: They cannot be stored.
        """
        if not self._begun:
            raise order("bytes came before a header that says of which file they are")
        if self._held + len(data) > self._size:
            raise UsageError(
                f"{self._path} has more than the {self._size} bytes that were declared; upload what the manifest lists",
                code="transcript.upload.oversized",
            )
        try:
            self._open().write(data)
        except OSError as error:
            raise cannot_write(self._path, error) from None
        self._held += len(data)
        self.received += len(data)

    def close(self) -> None:
        """Makes durable what came; a file may go on in another call.

        Raises:
            WeighbridgeError: It is the manifest, has ended, and does not verify; or it cannot be stored.
        """
        if not self._begun:
            return
        self._begun = False
        try:
            if self._file is not None or not self._size:
                with self._open() as file:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self._path, error) from None
        finally:
            self._file = None
        if self._table is None and self._held == self._size:
            text = (self.root / MANIFEST).read_bytes()
            if bytes_digest(text).hex() != self.id:
                raise UsageError(
                    "what came is the manifest of another transcript than the one that was named; upload it again",
                    code="transcript.upload.id",
                )
            self._table = self._listed(text)

    def check_whole(self) -> None:
        """Checks that each file that has begun has ended; whether all have begun is for who reads the transcript.

        Raises:
            UsageError: One has not (`transcript.upload.order`).
        """
        self._end_file()
        if self._table is None:
            raise order(f"an upload begins with {MANIFEST}, which is not here")
        for path, size in self._table.items():
            place = self.root / path
            if place.exists() and (held := place.stat().st_size) < size:
                raise order(f"{held} of the {size} bytes of {path[:100]} are here")

    def _end_file(self) -> None:
        """Ends the file that was begun.

        Raises:
            UsageError: Bytes of it are missing.
        """
        if self._begun and self._held < self._size:
            raise order(f"{self._held} of the {self._size} bytes of {self._path} came before something else")
        self.close()

    def _open(self) -> IO[bytes]:
        """Opens the file that was begun, once there is something to write, durably as far as its name goes."""
        if self._file is None:
            place = self.root / self._path
            place.parent.mkdir(parents=True, exist_ok=True)
            self._file = place.open("ab")
            sync(place.parent)
        return self._file


def order(what: str) -> UsageError:
    """Returns the error of who does not go on where an upload is; nothing is lost by it."""
    return UsageError(f"{what}; ask UploadStatus what is here and go on from there", code="transcript.upload.order")


def cannot_write(path: str, error: OSError) -> TranscriptError:
    """Returns the error of a disk that does not take a file."""
    return TranscriptError(
        f"{path[:100]!r} cannot be stored ({error.strerror}); free space on the Verifier's disk and go on",
        code="transcript.write",
    )
