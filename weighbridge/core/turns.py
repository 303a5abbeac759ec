"""Locks by name, each of which exists only while it is used."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class Turns:
    """One thread at a time for each name; threads with other names do not wait."""

    def __init__(self) -> None:
        """Has no locks yet."""
        self._lock = threading.Lock()
        self._locks: dict[Hashable, tuple[threading.Lock, int]] = {}

    def __len__(self) -> int:
        """Names that are in use."""
        return len(self._locks)

    @contextmanager
    def of(self, name: Hashable) -> Iterator[None]:
        """Waits for other threads with the same name; they wait until the block ends."""
        with self._lock:
            lock, users = self._locks.get(name, (threading.Lock(), 0))
            self._locks[name] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._locks.pop(name)
                if users > 1:
                    self._locks[name] = lock, users - 1
