"""What the command lines of all services have in common: limits of callers, metrics, addresses, an orderly end."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from pathlib import Path

from weighbridge.guards import CallLimits

_DEFAULT = CallLimits()


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


def asked_to_stop() -> threading.Event:
    """Returns what is set once somebody sends this process SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def write_address(path: Path, address: str) -> None:
    """Writes an address so that a reader sees all of it or nothing."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(address)
    os.replace(partial, path)
