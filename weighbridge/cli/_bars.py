"""A bar on standard error that shows how far a replay is; nothing where that is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def steps_bar(text: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar from the first report on until the block ends.

    Args:
        text: What is being done.
        quiet: Whether nothing is to be shown.

    Yields:
        Takes how many steps are done, and how many there are.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
    bar = bars.add_task(text, total=None)

    def advance(done: int, total: int) -> None:
        bars.start()  # not before: kernels may be compiled first, and a line on standard error says how far that is
        bars.update(bar, completed=done, total=total)

    try:
        yield advance
    finally:
        bars.stop()
