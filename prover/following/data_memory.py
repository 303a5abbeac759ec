"""Memory of a chip that holds data and no operation of the step in progress: batches fetched ahead, and data sets.

A chip knows the memory that any kernel has met, and loading has kernels too. What a step used or a neighbour uses is
in the transcript anyway. Of what else lies there at a snapshot a copy is kept, and enters the transcript with the batch
of that step or the next. Nothing but data is looked for: whatever else is beside the recording is for the Prover to
explain. Only while a program builds itself is it not known what is data. What it has from outside then, such as a
file's weights, counts as such, and afterwards as long as it does not change: a model that is trained does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from prover.capture.storages import HostCopy, Memory
from prover.capture.without_modes import unseen

_DEEPEST = 4
_MOST = 64
"""Tensors of one data set that are looked at; those of one with more are made in every fetch."""

Digest = tuple[int, bytes]


class DataMemory:
    """Follows it, and keeps copies of what a snapshot may have shown."""

    def __init__(self) -> None:
        self._memory = Memory()
        self._memory.on_death(self._gone)
        self._addresses: set[int] = set()
        self._early: set[int] = set()
        self._fixed: dict[int, Digest] = {}
        self._loaders: set[int] = set()
        self._seen: dict[int, Counter[Digest]] = {}
        self._copies: dict[Digest, HostCopy] = {}
        self._used: dict[int, list[HostCopy]] = {}

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Notes the memory of tensors that hold data."""
        self._addresses |= {self._memory.watch(t.untyped_storage()) for t in tensors if t.layout is torch.strided}

    def early(self, tensors: Iterable[Tensor]) -> None:
        """Notes memory from outside that the program uses while it builds itself."""
        self._early |= {self._memory.watch(t.untyped_storage()) for t in tensors if t.layout is torch.strided}

    @unseen
    def built(self) -> None:
        """To be called when the initialisation ends."""
        for address in self._early:
            if (copy := self._copy(address)) is not None:
                self._fixed[address] = copy.digest()
        self._early.clear()

    def loader(self, loader: Any) -> None:
        """Notes the tensors that a loader's data set holds."""
        if id(loader) not in self._loaders:
            self._loaders.add(id(loader))
            held = list(_tensors(getattr(loader, "dataset", None)))
            self.add(held if len(held) <= _MOST else ())

    @unseen
    def snapshot(self, step: int) -> None:
        """To be called before a snapshot may be taken: copies what lies there.

        Args:
            step: The step in progress.
        """
        now: Counter[Digest] = Counter()
        for address in self._addresses | self._early | self._fixed.keys():
            if (copy := self._copy(address)) is not None:
                digest = copy.digest()
                if address in self._addresses or self._fixed.get(address, digest) == digest:
                    now[digest] += 1
                    self._copies[digest] = copy
        self._seen[step] = self._seen.get(step, Counter()) | now

    def cut(self, step: int, used: Iterable[HostCopy], *, last: bool) -> list[HostCopy]:
        """Returns what no step says that had a snapshot near it.

        Args:
            step: The step that ends.
            used: What of data entered it.
            last: Whether none comes after it.
        """
        if last:
            self.snapshot(step)  # one may still be taken after the last step
        self._used = {at: copies for at, copies in self._used.items() if at >= step - 2} | {step: list(used)}
        due = [at for at in self._seen if at < step or last]
        found: Counter[Digest] = Counter()
        for at in due:
            near = Counter(copy.digest() for other in (at - 1, at, at + 1) for copy in self._used.get(other, ()))
            found |= self._seen.pop(at) - near
        missing = [self._copies[digest] for digest in found.elements()]
        self._copies = {
            digest: copy for digest, copy in self._copies.items() if any(digest in c for c in self._seen.values())
        }
        return missing

    def _copy(self, address: int) -> HostCopy | None:
        storage = self._memory.storage(address)
        if storage is None or not storage.nbytes() or storage.device.type == "meta":
            return None
        return HostCopy(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))

    def _gone(self, address: int) -> None:
        self._addresses.discard(address)
        self._early.discard(address)
        self._fixed.pop(address, None)


def _tensors(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """Yields the tensors that a data set holds, and those that it is made of."""
    if isinstance(value, Tensor):
        yield value
    elif depth < _DEEPEST:
        parts: Iterable[Any] = ()
        if isinstance(value, (list, tuple)):
            parts = value[: _MOST + 1]
        elif isinstance(value, dict):
            parts = list(value.values())[: _MOST + 1]
        elif isinstance(value, torch.utils.data.Dataset):
            parts = vars(value).values()
        for each in parts:
            yield from _tensors(each, depth + 1)
