"""What the processes of all services have in common: an address for others to read, and an orderly end."""

from __future__ import annotations

import contextlib
import queue
import signal
from pathlib import Path

from weighbridge.core import secret_files

_WAKE_SECONDS = 0.5


class AskedToStop:
    """Whether this process was sent SIGTERM or SIGINT; make it in the main thread, and wait there.

    A `threading.Event` would not do: a signal that arrives just as the main thread begins to wait for the event makes
    its handler wait for a lock that the same thread holds. A `SimpleQueue` may be used in handlers.
    """

    def __init__(self) -> None:
        """Takes the two signals from now on."""
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: self._signals.put(received))

    def wait(self) -> None:
        """Returns once it was asked."""
        while True:
            # Another thread may have been given the signal; only the main one runs its handler, once it wakes.
            with contextlib.suppress(queue.Empty):
                self._signals.get(timeout=_WAKE_SECONDS)
                return


def write_address(path: Path, address: str) -> None:
    """Writes an address, which is no secret, so that a reader sees all of it or nothing."""
    secret_files.publish(path, address)
