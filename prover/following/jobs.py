"""What is different where the followed program is one rank of a job on several.

Its collectives are recorded, and its evaluations too, since ranks wait for each other in them. Python objects that
ranks send each other, as they do to save a checkpoint, and the state of torch's generators, which draws of a recording
do not follow, are no tensors of the training: they travel unrecorded.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import torch

from weighbridge.core.errors import UsageError

if TYPE_CHECKING:  # it loads torch.distributed, which one process does without
    from prover.ranks.job import Job

T = TypeVar("T")

_OBJECTS = (
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list",
)  # fmt: skip
_PLACES = {
    "torch.distributed": _OBJECTS,
    "torch.distributed.distributed_c10d": _OBJECTS,
    "accelerate.data_loader": ("synchronize_rng_states",),
}


NOT_YET = "this process is one of several ranks; call follow() after init_process_group()"


class Aside(Protocol):
    """The part that knows how to leave something alone."""

    def aside(self, work: Callable[[], T]) -> T:
        """Does work that is not recorded and returns its result."""


def in_job() -> bool:
    """True if this process is one of several ranks, or talks to itself as if it were."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def has_ranks() -> bool:
    """True in a process that `torchrun` started beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def joined(mesh: Mapping[str, int] | None) -> Job | None:
    """Joins the job that this process is a rank of, if it is.

    Args:
        mesh: See `prover.Job.from_environment`.

    Raises:
        UsageError: There is no process group yet, though there are to be several ranks; or the mesh has other ranks.
    """
    if not in_job():
        if has_ranks():
            raise UsageError(NOT_YET)
        if mesh is not None:
            raise UsageError("there is no process group for this mesh; call init_process_group() before follow()")
        return None
    from prover.ranks.job import Job  # noqa: PLC0415 (as above)

    return Job.from_environment(mesh)


class Objects:
    """Lets Python objects travel unrecorded while it is entered."""

    def __init__(self, owner: Aside) -> None:
        self._owner = owner
        self._plain: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        if in_job():
            for place, names in _PLACES.items():
                module = sys.modules.get(place)
                for name in names if module is not None else ():
                    plain = getattr(module, name, None)
                    if plain is not None:
                        self._plain.append((module, name, plain))
                        setattr(module, name, self._aside(plain))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, name, plain in self._plain:
            setattr(module, name, plain)
        self._plain.clear()

    def _aside(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        owner = self._owner

        @functools.wraps(plain)
        def exchange(*args: Any, **kwargs: Any) -> Any:
            return owner.aside(lambda: plain(*args, **kwargs))

        return exchange
