"""What the command lines of all services have in common: limits of callers, metrics, addresses, an orderly end."""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
from pathlib import Path

from weighbridge.guards import CallLimits

_DEFAULT = CallLimits()
_WAKE_SECONDS = 0.5


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--metrics` and the limits of one certificate's calls; read the latter with `limits_of`."""
    parser.add_argument(
        "--metrics", help="host:port at which to show Prometheus metrics over plain HTTP; default: nowhere"
    )
    parser.add_argument(
        "--calls-per-second",
        type=float,
        default=_DEFAULT.rate_per_s,
        help="calls that one certificate may make a second",
    )
    parser.add_argument(
        "--burst", type=float, default=_DEFAULT.burst, help="calls that it may make at once after a rest"
    )
    parser.add_argument("--streams", type=int, default=_DEFAULT.streams, help="streaming calls that it may have open")
    parser.add_argument(
        "--idle-seconds", type=float, default=_DEFAULT.idle_s, help="time that a stream may wait for its client"
    )


def limits_of(options: argparse.Namespace) -> CallLimits:
    """Returns the limits that a command line asks for.

    Raises:
        UsageError: They would refuse everything.
    """
    return CallLimits(
        rate_per_s=options.calls_per_second, burst=options.burst, streams=options.streams, idle_s=options.idle_seconds
    )


class AskedToStop:
    """Whether somebody has sent this process SIGTERM or SIGINT; make it in the main thread, and wait there.

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
    """Writes an address so that a reader sees all of it or nothing."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(address)
    os.replace(partial, path)
