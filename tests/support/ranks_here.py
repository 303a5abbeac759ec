"""Ranks of one group as threads of this process; gloo connects them over the loopback interface, like processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import HashStore, ProcessGroup, ProcessGroupGloo

_TIMEOUT = timedelta(seconds=60)


class Ranks:
    """The ranks of a group."""

    def __init__(self, members: int, pool: ThreadPoolExecutor) -> None:
        self._pool, store = pool, HashStore()
        self.groups = self.all(members, lambda rank: _group(store, rank, members))

    def all(self, members: int, work: Callable[[int], Any]) -> list[Any]:
        """Does the work of each rank at the same time and returns what they return, once all are done."""
        futures: list[Future[Any]] = [self._pool.submit(work, rank) for rank in range(members)]
        wait(futures)
        return [future.result() for future in futures]


def _group(store: HashStore, rank: int, members: int) -> ProcessGroup:
    group, gloo = ProcessGroup(store, rank, members), ProcessGroup.BackendType.GLOO
    group._set_default_backend(gloo)
    group._register_backend(torch.device("cpu"), gloo, ProcessGroupGloo(store, rank, members, _TIMEOUT))
    return group


@contextlib.contextmanager
def ranks_here(members: int) -> Iterator[Ranks]:
    """Connects so many ranks."""
    with ThreadPoolExecutor(members) as pool:
        ranks = Ranks(members, pool)
        yield ranks
        ranks.groups.clear()  # its threads have to end before the process does
