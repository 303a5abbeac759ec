"""Bars that show how far training jobs are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


class Bars:
    """One bar for each job; see `bars`."""

    def __init__(self, progress: Any) -> None:
        """Takes rich's display."""
        self._progress = progress

    def add(self, name: str, steps: int) -> Callable[[int, int, float], None]:
        """Adds a job; returns what to call after each of its steps with (steps done, steps in all, loss)."""
        bar = self._progress.add_task(name, total=steps, loss="", start=False)
        started = False

        def on_step(done: int, _: int, loss: float) -> None:
            nonlocal started
            if not started:
                self._progress.start_task(bar)
                started = True
            self._progress.update(bar, completed=done, loss=f"loss {loss:.3f}")

        return on_step


@contextmanager
def bars(console: Console) -> Iterator[Bars]:
    """Shows bars on a console until the block ends."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield Bars(progress)
