"""Notices when a program fetches a batch from a `DataLoader`, and lets the loading run unrecorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self
from weakref import ref

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

_LOADER = "_weighbridge_loader"


class Fetching(Protocol):
    """The part that is told of fetches."""

    def fetched(self, loader: Any, fetch: Callable[[], Any], goes_on: Callable[[], bool]) -> Any:
        """Fetches a batch and returns it; also called where there is none left, and `fetch` raises StopIteration.

        Args:
            loader: What it comes from.
            fetch: Fetches it.
            goes_on: Whether another may yet come from the same pass through `loader`.
        """

    def aside(self, work: Callable[[], Any]) -> Any:
        """Does work that is not recorded and returns its result."""


class Fetches:
    """Watches all loaders while it is entered."""

    def __init__(self, owner: Fetching) -> None:
        self._owner = owner
        self._iter, self._next = DataLoader.__iter__, _BaseDataLoaderIter.__next__

    def __enter__(self) -> Self:
        owner, iterate, following = self._owner, self._iter, self._next

        def begin(loader: Any) -> Any:
            iterator = owner.aside(lambda: iterate(loader))
            if isinstance(iterator, _BaseDataLoaderIter):
                setattr(iterator, _LOADER, loader)
            return iterator

        def fetch(iterator: Any) -> Any:
            lives = ref(iterator)
            loader = getattr(iterator, _LOADER, iterator)
            return owner.fetched(loader, lambda: following(iterator), lambda: lives() is not None)

        setattr(DataLoader, "__iter__", begin)  # noqa: B010 (for type checkers it cannot be assigned)
        setattr(_BaseDataLoaderIter, "__next__", fetch)  # noqa: B010
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        setattr(DataLoader, "__iter__", self._iter)  # noqa: B010
        setattr(_BaseDataLoaderIter, "__next__", self._next)  # noqa: B010


def fetches(owner: Fetching, batches: Any) -> Iterator[Any]:
    """Yields the batches of any iterable, as if a `DataLoader` gave them."""
    iterator = owner.aside(lambda: iter(batches))
    while True:
        try:
            batch = owner.fetched(batches, lambda: next(iterator), lambda: True)
        except StopIteration:
            return
        yield batch
        del batch  # how long it lives is up to the program
