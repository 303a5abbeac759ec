"""How long one end of a call waits for the other: servers for their clients, and clients for what they fetch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc


class Watchdog:
    """Cancels calls that wait for their client too long; one thread for all calls of a process."""

    def __init__(self) -> None:
        """The thread starts with the first call."""
        self._due: dict[object, tuple[float, Any]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def begin(self, call: Any, seconds: float) -> object:
        """Cancels a call, by its `cancel()`, unless `end` is called in time with what this returns."""
        place = object()  # A call may wait twice at once: for what it reads and for what it writes.
        with self._changed:
            self._due[place] = (time.monotonic() + seconds, call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rpc watchdog", daemon=True)
                self._thread.start()
            if len(self._due) == 1:
                self._changed.notify()
        return place

    def end(self, place: object) -> bool:
        """Ends a watch; tells whether it was in time. Ending it again does nothing."""
        with self._changed:
            return self._due.pop(place, None) is not None

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due:
                    self._changed.wait()
                now = time.monotonic()
                late = [(key, context) for key, (due, context) in self._due.items() if due <= now]
                for key, _ in late:
                    del self._due[key]
            for _, context in late:
                context.cancel()
            time.sleep(0.1)


WATCHDOG = Watchdog()


class Patience:
    """How long a stream waits for its peer: a while each time and, of all its time, as its bytes deserve.

    Attributes:
        over: Whether the last wait took too long, so that the call was cancelled.
    """

    def __init__(self, idle_s: float, least_per_s: float, first_s: float | None = None) -> None:
        """Begins with time for one while.

        Args:
            idle_s: Seconds that one wait may take, and that all of them may take before anything came.
            least_per_s: Bytes a second that earn more; 0 if any message does.
            first_s: Seconds that the first wait may take, if not as long as any other: the peer has work to do.
        """
        self._idle_s, self._least_per_s, self._first_s = idle_s, least_per_s, first_s
        self._left_s = idle_s
        self.over = False

    @property
    def spent(self) -> bool:
        """Whether no time is left, so that even a call of its own would have none."""
        return self._left_s <= 0

    @contextmanager
    def waits(self, call: Any) -> Iterator[None]:
        """Cancels the call if the block takes too long; raises grpc.RpcError then.

        The iterator of a cancelled call's requests may just end, as if the client had sent all that it had to say.
        """
        begun, first_s, self._first_s = time.monotonic(), self._first_s, None
        place = WATCHDOG.begin(call, min(self._idle_s, self._left_s) if first_s is None else first_s)
        try:
            yield
        finally:
            self.over = not WATCHDOG.end(place)
            if first_s is None:
                self._left_s -= time.monotonic() - begun
        if self.over:
            raise grpc.RpcError

    def add(self, size: int) -> None:
        """Grants time for bytes that went over the wire; no peer saves up more than a while for later."""
        if self._least_per_s:
            self._left_s = min(self._left_s + size / self._least_per_s, 2 * self._idle_s)
        else:
            self._left_s = self._idle_s

    def pause(self, seconds: float) -> None:
        """Sleeps, which takes of the time that is left."""
        time.sleep(seconds)
        self._left_s -= seconds

    def each(self, call: Any) -> Iterator[Any]:
        """Yields the messages that a server sends to a call of this process's; cancels it if they are too slow."""
        while True:
            with self.waits(call):
                message = next(call, None)
            if message is None:
                return
            self.add(message.ByteSize())
            yield message
