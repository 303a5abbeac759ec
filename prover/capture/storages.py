"""Follows storages: their identity, the moment they die, and copies of their content.

Storages are followed by weak references to their Python objects, which PyTorch keeps as long as the memory lives; so
births and deaths are exact.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import UsageError
from weighbridge.core.host_memory import alive
from weighbridge.numerics.arrays.physical import flat

Tensor = torch.Tensor
Storage = torch.UntypedStorage


class Watch(weakref.ref[Storage]):
    """A weak reference to a storage that remembers the address by which it is known."""

    __slots__ = ("address",)
    address: int


class HostCopy:
    """A copy of a tensor kept in host memory, as bytes: no tensor, so it is not part of what runs on the chip."""

    def __init__(self, t: Tensor) -> None:
        plain = t.detach().cpu().contiguous()
        self._dtype, self._shape = plain.dtype, plain.shape
        self._bytes = np.array(flat(plain).view(torch.uint8).numpy())

    def equals(self, t: Tensor) -> bool:
        """True if a tensor of the same type and shape has the same bits."""
        with _disable_current_modes():
            plain = t.detach().cpu().contiguous()
            return np.array_equal(flat(plain).view(torch.uint8).numpy(), self._bytes)

    def digest(self) -> tuple[int, bytes]:
        """Returns the number of bytes and their digest (32 bytes)."""
        return self._bytes.size, bytes_digest(self._bytes.data)

    @property
    def content(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes."""
        return self._bytes

    def tensor(self) -> Tensor:
        """Returns the copy as a tensor on the CPU, sharing its memory."""
        if not self._bytes.size:
            return torch.empty(self._shape, dtype=self._dtype)
        return torch.from_numpy(self._bytes).view(self._dtype).view(self._shape)


class Memory:
    """Follows the life of storages: who they are and when they die."""

    def __init__(self) -> None:
        self._watches: dict[int, Watch] = {}
        self._died: Callable[[int], None] = lambda address: None

    def on_death(self, callback: Callable[[int], None]) -> None:
        """Calls `callback(address)` when a watched storage dies; there is one such callback at a time."""
        self._died = callback

    def watch(self, storage: Storage) -> int:
        """Watches a storage and returns its address, its identity while it lives."""
        address: int = storage._cdata
        if address not in self._watches:
            watch = Watch(storage, self._gone)
            watch.address = address
            self._watches[address] = watch
        return address

    def storage(self, address: int) -> Storage | None:
        """Returns a watched storage, or None if it is dead."""
        watch = self._watches.get(address)
        return alive(watch) if watch is not None else None

    def storages(self, addresses: Iterable[int]) -> list[Storage]:
        """Returns those of some storages that are alive, and keeps them so as long as the list is kept."""
        found = (self.storage(address) for address in addresses)
        return [storage for storage in found if storage is not None]

    def forget(self, address: int) -> None:
        """Watches a storage no longer."""
        self._watches.pop(address, None)

    def _gone(self, watch: Watch) -> None:
        if self._watches.get(watch.address) is watch:
            del self._watches[watch.address]
            self._died(watch.address)


def host_copies(tensors: Mapping[str, Tensor]) -> dict[str, HostCopy]:
    """Returns copies of tensors that a step may change; a chip must not see them as the workload's.

    Raises:
        UsageError: One wraps others, as a `DTensor` does, and has no bytes of its own.
    """
    for name, t in tensors.items():
        if type(t).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            raise UsageError(
                f"{name} of the batch is a {type(t).__name__}, which wraps other tensors and has no bytes of its own; "
                "pass what this rank holds of it (to_local() of a DTensor), and wrap that in the step"
            )
    with _disable_current_modes():
        return {name: HostCopy(t) for name, t in tensors.items()}
