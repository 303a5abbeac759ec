"""Every thread that the workload starts goes through the shim: a mode at the dispatcher is that of one thread."""

from __future__ import annotations

import _thread
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any


@contextlib.contextmanager
def entered(inside: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Runs what Python threads run in a context, if they are started in the meantime.

    Args:
        inside: Makes the context of one thread, in that thread.
    """
    thread: Any = threading.Thread
    bootstrap, start = thread._bootstrap_inner, _thread.start_new_thread

    def within(function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> object:
            with inside():
                return function(*args, **kwargs)

        return run

    def started(function: Callable[..., object], *rest: Any) -> int:
        return start(within(function), *rest)

    thread._bootstrap_inner, _thread.start_new_thread = within(bootstrap), started
    try:
        yield
    finally:
        thread._bootstrap_inner, _thread.start_new_thread = bootstrap, start
