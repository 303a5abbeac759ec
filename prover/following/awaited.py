"""Batches that were fetched and are not used yet, by the memory that they lie on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class Fetched:
    """A batch that was fetched and not used yet.

    Attributes:
        loader: Identity of the loader.
        tensors: Path to tensor.
        cuts: How many segments had been cut then.
        goes_on: Whether what it was fetched from may yet give another one.
    """

    loader: int
    tensors: dict[str, Tensor]
    cuts: int
    goes_on: Callable[[], bool]


class Awaited:
    """Finds the batch that a tensor belongs to."""

    def __init__(self) -> None:
        self._by_address: dict[int, Fetched] = {}

    def __contains__(self, address: int) -> bool:
        return address in self._by_address

    def __bool__(self) -> bool:
        return bool(self._by_address)

    def __getitem__(self, address: int) -> Fetched:
        return self._by_address[address]

    def add(self, fetched: Fetched, addresses: Iterable[int]) -> None:
        """Awaits a batch; another that was awaited on the same memory is not, any more."""
        addresses = set(addresses)
        for address in addresses:
            if address in self._by_address:
                self.forget(self._by_address[address])
        self._by_address |= dict.fromkeys(addresses, fetched)

    def forget(self, fetched: Fetched) -> None:
        """Awaits a batch no longer."""
        self._by_address = {address: each for address, each in self._by_address.items() if each is not fetched}

    def forget_before(self, cuts: int) -> None:
        """Awaits those no longer that were fetched before so many cuts."""
        self._by_address = {address: each for address, each in self._by_address.items() if each.cuts >= cuts}

    def clear(self) -> None:
        """Awaits nothing."""
        self._by_address.clear()
