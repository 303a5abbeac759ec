"""What a terminal shows while a command is at work and has said nothing for two seconds: a spinner on standard error.

Any output of the command ends it, so that the two never mix. Where standard error is no terminal, nothing is shown.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_SILENCE_S = 2.0


class Waiting:
    """A spinner that begins after a silence; see `waiting`."""

    def __init__(self, text: str, after_s: float) -> None:
        """Prepares it; `start` begins to count."""
        self.text = text
        self._guard, self._over = threading.RLock(), False
        self._live: Any = None
        self._timer = threading.Timer(after_s, self._show)
        self._timer.daemon = True

    def start(self) -> None:
        """Begins to count the silence."""
        self._timer.start()

    def _show(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        spinner = Spinner("dots", self.text, style="green")
        # The output of the command goes where it went before, and not through the spinner's console.
        live = Live(
            spinner, console=Console(file=sys.__stderr__), transient=True, redirect_stdout=False, redirect_stderr=False
        )
        with self._guard:
            if not self._over:
                self._live = live
                live.start()

    def say(self, text: str) -> None:
        """Changes what the spinner says."""
        from rich.spinner import Spinner

        with self._guard:
            self.text = text
            if self._live is not None and not self._over:
                self._live.update(Spinner("dots", text, style="green"))

    def stop(self) -> None:
        """Takes the spinner away, for good."""
        with self._guard:
            if self._over:
                return
            self._over = True
            self._timer.cancel()
            if self._live is not None:
                self._live.stop()


class _Watched:
    """A standard stream; whatever is done with it ends the spinner first."""

    def __init__(self, stream: TextIO, waiting: Waiting) -> None:
        self._stream, self._waiting = stream, waiting

    def __getattr__(self, name: str) -> Any:
        if name not in ("isatty", "encoding", "errors", "fileno"):  # these say nothing
            self._waiting.stop()
        return getattr(self._stream, name)


_now: Waiting | None = None


@contextmanager
def waiting(text: str, *, after_s: float = _SILENCE_S) -> Iterator[None]:
    """Shows a spinner whenever the block is silent for so long at its beginning, if standard error is a terminal.

    Args:
        text: What is being done.
        after_s: Seconds of silence.
    """
    global _now
    if sys.stderr is not sys.__stderr__ or sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    out, err = sys.stdout, sys.stderr
    shown = _now = Waiting(text, after_s)
    sys.stdout, sys.stderr = _Watched(out, shown), _Watched(err, shown)
    shown.start()
    try:
        yield
    finally:
        shown.stop()
        sys.stdout, sys.stderr, _now = out, err, None


def working_on(text: str) -> None:
    """Says what a command does now, to those who see the spinner."""
    from weighbridge.cli._exits import one_line

    if _now is not None:
        _now.say(one_line(text))
