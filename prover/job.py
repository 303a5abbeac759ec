"""A job on several ranks, as the Recorder of one rank sees it: its place, and the exchange with the others.

The exchange goes through the process group that the program used, below the Recorder's mode, and is complete when it
returns: contributions travel as bytes and are combined by `weighbridge.numerics.exchanges` (docs/sharding.md).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllToAllOptions, BroadcastOptions

from weighbridge.errors import UsageError
from weighbridge.job import AXES, RECORD, JobRecord, Place, rank_name
from weighbridge.numerics import exchanges

Tensor = torch.Tensor

_PIECE = 1 << 24
"""Elements that are exchanged at once, so that the buffers stay small."""


class Job:
    """This process's place in a job on several ranks.

    Attributes:
        place: The job's record and this rank.
    """

    def __init__(self, place: Place, alone: Any, device: torch.device) -> None:
        """Use `from_environment`."""
        self.place = place
        self._alone, self._device = alone, device
        self._sent: list[tuple[Any, Tensor]] = []

    @staticmethod
    def from_environment(mesh: Mapping[str, int] | None = None) -> Job:
        """Joins the job of the default process group; every rank calls this, after `init_process_group`.

        Args:
            mesh: Sizes of the axes `pipeline`, `data`, `tensor`, the last one varying fastest from rank to rank, as in
                `init_device_mesh`; by default all ranks are data-parallel.

        Raises:
            UsageError: There is no process group, or the mesh does not fit it.
        """
        if not dist.is_available() or not dist.is_initialized():
            raise UsageError("a job needs a process group; call torch.distributed.init_process_group() first")
        world, rank = dist.get_world_size(), dist.get_rank()
        sizes = {"data": world} if mesh is None else dict(mesh)
        record = JobRecord(bytes(16), tuple(sizes.items()))
        if not sizes or set(sizes) - set(AXES) or record.ranks != world:
            raise UsageError(f"the mesh {sizes} is not {', '.join(AXES)} with sizes that multiply to {world} ranks")
        device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        identity = torch.tensor(list(secrets.token_bytes(16)), dtype=torch.uint8, device=device)
        dist.broadcast(identity, 0)
        alone = dist.new_group([rank], use_local_synchronization=True)
        return Job(Place(JobRecord(bytes(identity.tolist()), record.mesh), rank), alone, device)

    def begin(self, path: Path) -> Path:
        """Returns the directory of this rank's transcript; the first rank writes the job's record.

        Raises:
            UsageError: There is a job in the directory already, or it cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            if self.place.rank == 0:
                with (path / RECORD).open("xb") as file:
                    file.write(self.place.job.encode())
        except FileExistsError:
            raise UsageError(f"{path} holds a job already; choose a new directory") from None
        except OSError as error:
            raise UsageError(f"cannot write to {path} ({error.strerror}); choose another directory") from None
        return path / rank_name(self.place.rank)

    def done(self, tensor: Tensor | None) -> Any:
        """Returns a completed `Work` whose future holds a tensor, as PyTorch's C++ code wants it.

        The library's thread may let go of the tensor a little later, so it should be one that lasts.
        """
        anything = tensor if tensor is not None and tensor.numel() else torch.zeros(1, device=self._device)
        work = self._alone.broadcast([anything], BroadcastOptions())
        work.wait()
        return work.boxed()

    def send(self, group: Any, tensor: Tensor, place: int, tag: int) -> Any:
        """Sends a copy of a tensor and returns the `Work`; whoever receives may not be ready yet."""
        copy = tensor.detach().contiguous().clone()
        work = group.send([_octets(copy.view(-1))], place, tag)
        self._sent.append((work, copy))
        return work.boxed()

    def settle(self) -> None:
        """Waits until everything that was sent has left."""
        for work, _ in self._sent:
            if not work.is_completed():  # to wait twice would be to wait for another message
                work.wait()
        self._sent.clear()

    def exchange(
        self, group: Any, name: str, outs: Sequence[Tensor], ins: Sequence[Tensor], reduction: str, root: int, tag: int
    ) -> None:
        """Performs a collective, except `send`, and writes its results.

        Args:
            group: The process group.
            name: One of `exchanges.NAMES`.
            outs: Tensors to be written.
            ins: Tensors that this rank contributes.
            reduction: How contributions are combined, or empty.
            root: Place of the root in the group; of a message, of its source.
            tag: Of a message.

        Raises:
            UsageError: Members of the group contribute tensors of different sizes.
            RefusedOperationError: The dtype has no such reduction.
        """
        flat_ins = [t.detach().contiguous().reshape(-1) for t in ins]
        flat_outs = [torch.empty(t.numel(), dtype=t.dtype, device=t.device) for t in outs]
        if name == "recv":
            group.recv([_octets(flat_outs[0])], root, tag).wait()
        elif name == "broadcast":
            buffer = flat_ins[0].clone() if flat_ins else flat_outs[0]
            group.broadcast([_octets(buffer)], _root(root)).wait()
            flat_outs[0].copy_(buffer)
        else:
            self._combined(group, name, flat_outs, flat_ins, reduction, root)
        for out, flat in zip(outs, flat_outs, strict=True):
            out.detach().copy_(flat.view(out.shape))

    def _combined(
        self, group: Any, name: str, outs: list[Tensor], ins: list[Tensor], reduction: str, root: int
    ) -> None:
        members, place = group.size(), group.rank()
        sources = exchanges.pieces(name, members, place, root)
        sizes = {t.numel() for t in (*ins, *outs)}
        if len(sizes) == 1 and name in ("all_reduce", "all_gather"):
            (size,) = sizes
            for first in range(0, size, _PIECE):
                part = slice(first, min(first + _PIECE, size))
                everything = _all_gather(group, ins[0][part])
                for out, wanted in zip(outs, sources, strict=True):
                    out[part] = exchanges.combine(reduction, [everything[i] for i, _ in wanted])
            return
        _check_sizes(name, sizes)
        for out, parts in zip(outs, _all_to_all(group, name, outs, ins, place, root), strict=True):
            if out.numel():
                out.copy_(exchanges.combine(reduction, parts))


def _root(place: int) -> BroadcastOptions:
    options = BroadcastOptions()
    options.rootRank = place
    return options


def _octets(t: Tensor) -> Tensor:
    return t.view(torch.uint8)


def _check_sizes(name: str, sizes: set[int]) -> None:
    if name != "all_to_all" and len(sizes) > 1:
        raise UsageError(f"{name} of tensors of different sizes {sorted(sizes)}; pad them to the same size")


def _all_gather(group: Any, mine: Tensor) -> list[Tensor]:
    octets = _octets(mine.clone())  # the library's thread may let go of it later, and births and deaths are on the tape
    received = torch.empty(group.size() * octets.numel(), dtype=torch.uint8, device=mine.device)
    group._allgather_base(received, octets, AllgatherOptions()).wait()
    return [part.view(mine.dtype) for part in torch.split(received, octets.numel())]


def _all_to_all(
    group: Any, name: str, outs: list[Tensor], ins: list[Tensor], place: int, root: int
) -> list[list[Tensor]]:
    """Sends each member what it needs and returns, for each of `outs`, the parts to be combined."""
    members = group.size()
    wanted = [exchanges.pieces(name, members, i, root) for i in range(members)]
    giving = [[ins[j] for sources in wanted[i] for who, j in sources if who == place] for i in range(members)]
    getting = [[out.numel() for out, s in zip(outs, wanted[place], strict=True) if any(w == i for w, _ in s)]
               for i in range(members)]  # fmt: skip
    like = (ins or outs)[0] if ins or outs else torch.empty(0)
    sent = torch.cat([_octets(t) for each in giving for t in each] or [torch.empty(0, dtype=torch.uint8)])
    sent = sent.to(like.device)
    takes = [sum(sizes) * like.itemsize for sizes in getting]
    received = torch.empty(sum(takes), dtype=torch.uint8, device=like.device)
    gives = [sum(t.numel() * t.itemsize for t in each) for each in giving]
    group.alltoall_base(received, sent, takes, gives, AllToAllOptions()).wait()
    parts = [part.view(like.dtype) for part in torch.split(received, takes)]
    result = []
    for sources in wanted[place]:
        # Every member sends at most one part for each result, in the order of the results.
        taken = []
        for who, _ in sources:
            size = getting[who].pop(0)
            taken.append(parts[who][:size])
            parts[who] = parts[who][size:]
        result.append(taken)
    return result
