"""Work that is done beside the program, in a thread: one piece after the other, a few at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.utils._python_dispatch import _disable_current_modes


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work.

    Attributes:
        work: Done in the thread; it shares nothing with the program that either of them changes.
        done: Called in the program's own thread when that is complete.
        undone: Called there if it failed, or was not begun because the one before it failed.
    """

    work: Callable[[], None]
    done: Callable[[], None] = lambda: None
    undone: Callable[[], None] = lambda: None


class Background:
    """Does one list of tasks at a time; all methods are for one thread of the program."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._tasks: Sequence[Task] = ()
        self._complete = 0
        self._error: BaseException | None = None

    def do(self, *tasks: Task, beside: bool) -> None:
        """Does tasks in turn, when those before are complete; raises what these raised.

        Args:
            *tasks: What to do; if one fails, those after it are not begun.
            beside: Whether to return at once; else what a task raises is raised here.
        """
        if beside:
            self._start(*tasks)
            return
        self.settle()
        for number, task in enumerate(tasks):
            try:
                task.work()
            except BaseException:
                for each in tasks[number:]:
                    each.undone()
                raise
            task.done()

    def _start(self, *tasks: Task) -> None:
        self.settle()
        self._tasks, self._complete = tasks, 0
        self._thread = threading.Thread(target=self._run, name="weighbridge-files")
        self._thread.start()

    def settle(self) -> None:
        """Waits for the tasks in progress and accounts for them.

        Raises:
            Exception: What a task raised; once.
        """
        if self._thread is None:
            return
        self._thread.join()
        tasks, complete, error = self._tasks, self._complete, self._error
        self._thread, self._tasks, self._error = None, (), None
        for number, task in enumerate(tasks):
            (task.done if number < complete else task.undone)()
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            with _disable_current_modes():  # no chip should take this for the workload's
                for task in self._tasks:
                    task.work()
                    self._complete += 1
        except BaseException as error:  # for the program's thread, whatever it is
            self._error = error
