"""One dispute of a referee as a directory: its messages, each made durable before it counts, and its clocks.

`notice`, then `0.message`, `1.message`, ... of the parties, `ruling`, and `clocks` with the seconds used so far. A file
appears whole or not at all, so that a referee that was killed at any point finds the dispute as it was.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from weighbridge.core import durable
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError
from weighbridge.execution.dispute.messages import MAX_MESSAGES


class CaseFiles:
    """The directory of one dispute."""

    def __init__(self, directory: Path) -> None:
        """The directory need not exist yet."""
        self.directory = directory

    def create(self, notice: bytes, challenge: bytes) -> None:
        """Writes the files that a dispute begins with."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write("notice", notice)
        self.add(0, challenge)
        durable.sync(self.directory.parent)

    def add(self, number: int, message: bytes) -> None:
        """Writes a message of a party."""
        self._write(f"{number}.message", message)

    def rule(self, message: bytes) -> None:
        """Writes the ruling."""
        self._write("ruling", message)

    def clock(self, used: tuple[float, float]) -> None:
        """Writes the seconds that the parties have used."""
        self._write("clocks", cbor([*used]))

    def notice(self) -> bytes:
        """Returns the notice; empty if the dispute was never begun."""
        return self._read("notice")

    def messages(self) -> list[bytes]:
        """Returns the messages of the parties, in order."""
        found = []
        for number in range(MAX_MESSAGES):
            data = self._read(f"{number}.message")
            if not data:
                break
            found.append(data)
        return found

    def ruling(self) -> bytes:
        """Returns the ruling; empty if there is none."""
        return self._read("ruling")

    def used(self) -> tuple[float, float]:
        """Returns the seconds that the parties have used.

        Raises:
            FormatError: The file says nothing of that kind.
        """
        data = self._read("clocks")
        if not data:
            return 0.0, 0.0
        match decode_cbor(data, max_items=4):
            case [float(one), float(other)] if 0 <= one < math.inf and 0 <= other < math.inf:
                return one, other
            case _:
                raise FormatError(f"{self.directory / 'clocks'} is damaged; restore it, or delete it to begin anew.")

    def _read(self, name: str) -> bytes:
        path = self.directory / name
        return path.read_bytes() if path.exists() else b""

    def _write(self, name: str, data: bytes) -> None:
        partial = self.directory / f"{name}.partial"
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.directory / name)
        durable.sync(self.directory)
