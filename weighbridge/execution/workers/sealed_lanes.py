"""Receives the files of two parties at once in a sealed worker, so that neither can hold up the other.

Their streams come interleaved on one descriptor, in frames that name the party. Who carries them sees and alters
nothing of a stream unnoticed: it can only keep it back, which is a party's silence.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from weighbridge.attest.sealed_channel import IncomingStream, SealedInputError
from weighbridge.attest.sealed_dispute import read_lane_frame
from weighbridge.core.errors import WeighbridgeError


class Lanes:
    """The streams of both parties of one job."""

    def __init__(self, source: BinaryIO, streams: Sequence[IncomingStream], into: Path, *, limit: int) -> None:
        """Begins to receive.

        Args:
            source: Where the frames come from; nothing else may read from it.
            streams: Of challenger and defender.
            into: An existing directory, below which each party's files get one of their own.
            limit: So many bytes the files of one party may have.
        """
        self._whole: dict[int, Path] = {}
        self._changed = threading.Condition()
        self._receiving = len(streams)
        writers = []
        for party, stream in enumerate(streams):
            theirs, ours = os.pipe()
            writers.append(ours)
            arguments = (party, stream, os.fdopen(theirs, "rb"), into / str(party), limit)
            threading.Thread(target=self._receive, args=arguments, name=f"lane {party}", daemon=True).start()
        threading.Thread(target=_carry, args=(source, writers), name="lanes", daemon=True).start()

    def wait(self, until: float) -> tuple[Path | None, ...]:
        """Returns where the files of each party lie, once all are there or the time is over; None of one that is late.

        Args:
            until: By the monotonic clock, in seconds.
        """
        with self._changed:
            while self._receiving and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return tuple(self._whole.get(party) for party in range(2))

    def _receive(self, party: int, stream: IncomingStream, source: BinaryIO, into: Path, limit: int) -> None:
        whole = False
        try:
            with source:
                stream.receive(source, into, limit=limit, to_the_end=False)
            whole = True
        except (WeighbridgeError, OSError):
            pass  # not of its party, not what it committed to, or cut off: nothing of it is there
        finally:
            with self._changed:
                if whole:
                    self._whole[party] = into
                self._receiving -= 1
                self._changed.notify_all()


def _carry(source: BinaryIO, writers: Sequence[int]) -> None:
    """Gives each party's pieces to its own receiver, until the source ends; what follows a stream is dropped."""
    done = set[int]()
    try:
        while True:
            party, piece = read_lane_frame(source)
            if party not in done:
                try:
                    _write(writers[party], piece)
                except BrokenPipeError:
                    done.add(party)
    except (SealedInputError, OSError):
        pass
    finally:
        for each in writers:
            with contextlib.suppress(OSError):
                os.close(each)


def _write(descriptor: int, piece: bytes) -> None:
    left = memoryview(piece)
    while left:
        left = left[os.write(descriptor, left) :]
