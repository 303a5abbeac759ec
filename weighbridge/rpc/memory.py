"""One budget for the requests that a server holds in memory, of all its callers together and of each.

A call takes from the budget what it holds, and gives all of it back when it ends, whichever way. Services that keep
more than the message at hand say so with `keep`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from weighbridge.rpc.busy import BusyError

SHARES = 4
"""One certificate may take a quarter of the budget."""


class Memory:
    """The budget of one server; safe to use from several threads."""

    def __init__(self, total: int) -> None:
        """Has `total` bytes."""
        self._total, self._own = total, total // SHARES
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        self._sum = 0

    @property
    def held(self) -> int:
        """Bytes that all calls hold together."""
        return self._sum

    @contextmanager
    def of_call(self, caller: str) -> Iterator[Held]:
        """Counts what one call of `caller` holds until the block ends; `keep` counts there, too."""
        held = Held(self, caller)
        token = _CURRENT.set(held)
        try:
            yield held
        finally:
            held.give_back(held.size)
            if _CURRENT.get() is held:  # A stream's generator may be closed in another context.
                _CURRENT.reset(token)

    def change(self, caller: str, size: int) -> None:
        """Takes `size` bytes for a caller; gives them back if it is negative.

        Raises:
            BusyError: There are not so many.
        """
        with self._lock:
            own = self._held.get(caller, 0) + size
            if size > 0 and (own > self._own or self._sum + size > self._total):
                whose = "this certificate's" if own > self._own else "all callers'"
                limit = self._own if own > self._own else self._total
                raise BusyError(
                    f"The server holds {limit >> 20} MiB of {whose} requests and takes no more at a time; send them "
                    "one after another, wait a second and call again, or have --request-memory raised.",
                    retry_s=1,
                )
            self._sum += size
            if own:
                self._held[caller] = own
            else:
                self._held.pop(caller, None)


class Held:
    """What one call holds.

    Attributes:
        size: Bytes.
    """

    def __init__(self, memory: Memory, caller: str) -> None:
        """Holds nothing yet; `Memory.of_call` makes one."""
        self._memory, self._caller = memory, caller
        self.size = 0

    def take(self, size: int) -> None:
        """Holds `size` bytes more.

        Raises:
            BusyError: There is no room for them.
        """
        self._memory.change(self._caller, size)
        self.size += size

    def give_back(self, size: int) -> None:
        """Holds `size` bytes less."""
        self._memory.change(self._caller, -size)
        self.size -= size


_CURRENT: ContextVar[Held | None] = ContextVar("held", default=None)


def keep(size: int) -> None:
    """Counts `size` bytes that the present call keeps until it ends; outside of a server's calls, nothing is counted.

    Raises:
        BusyError: There is no room for them.
    """
    held = _CURRENT.get()
    if held is not None:
        held.take(size)
