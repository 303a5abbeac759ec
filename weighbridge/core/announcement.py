"""Says on standard error how far an unexpected wait is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time

_LINE_SECONDS = 5.0
_WIDTH = 30


class Announcement:
    """What takes so long, and how far it is; says nothing before it is first called."""

    def __init__(self, text: str) -> None:
        """Takes what is being done, for a person."""
        self._text = text
        self._begun: float | None = None
        self._said = -math.inf
        self._ended = False

    def __call__(self, done: int, total: int) -> None:
        """Says how many of how many parts are done, and for how long; after the call with all of them, nothing more."""
        if sys.stderr is None or self._ended:  # a program without a console
            return
        now = time.monotonic()
        self._begun = now if self._begun is None else self._begun
        self._ended = done >= total
        # One part can take half a minute: the seconds show that it goes on.
        line = f"weighbridge: {self._text}: {done}/{total}, {now - self._begun:.0f} s"
        if sys.stderr.isatty():
            bar = "#" * (_WIDTH * done // max(1, total))
            print(f"\r{line} [{bar:<{_WIDTH}}]", end="\n" if self._ended else "", file=sys.stderr, flush=True)
        elif self._ended or now - self._said >= _LINE_SECONDS:
            print(line, file=sys.stderr, flush=True)
            self._said = now


def compiling() -> Announcement:
    """Announces that loops are being compiled."""
    return Announcement("compiling kernels for this machine, once")
