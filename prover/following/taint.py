"""Memory that was computed unrecorded, in an evaluation, and where that began."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from prover.capture.storages import Memory


class Taint:
    """Which storages are tainted, by address, as long as they live."""

    def __init__(self) -> None:
        self._memory = Memory()
        self._memory.on_death(self._gone)
        self._from: dict[int, str] = {}

    def __contains__(self, address: int) -> bool:
        return address in self._from

    def __bool__(self) -> bool:
        return bool(self._from)

    def add(self, tensors: Iterable[Tensor], line: str) -> None:
        """Taints the memory of tensors.

        Args:
            tensors: The tensors.
            line: Where in the program it began.
        """
        for t in tensors:
            address = self._memory.watch(t.untyped_storage())
            self._from.setdefault(address, line)

    def clear(self, address: int) -> None:
        """Notes that memory is recorded from now on."""
        self._from.pop(address, None)
        self._memory.forget(address)

    def line(self, address: int) -> str | None:
        """Returns where the content of a storage came from, if it is tainted."""
        return self._from.get(address)

    def _gone(self, address: int) -> None:
        self._from.pop(address, None)
