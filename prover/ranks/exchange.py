"""The exchange between the ranks of a job, which performs its collectives.

It goes through the process group that the program used, below the Recorder's mode, and is complete when it returns:
contributions travel as bytes and are combined by `weighbridge.numerics.exchanges` (docs/sharding.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import AllgatherOptions, AllToAllOptions, BroadcastOptions

from weighbridge.core.errors import UsageError
from weighbridge.numerics import exchanges

Tensor = torch.Tensor

_PIECE = 1 << 24
"""Elements that are exchanged at once, so that the buffers stay small."""


class Exchange:
    """One rank's end of the exchange."""

    def __init__(self, alone: Any, device: torch.device) -> None:
        """Prepares the exchange.

        Args:
            alone: A process group of this rank alone.
            device: Where the process group wants tensors.
        """
        self._alone, self._device = alone, device
        self._sent: list[tuple[Any, Tensor]] = []

    def done(self, tensor: Tensor | None) -> Any:
        """Returns a completed `Work` whose future holds a tensor, as PyTorch's C++ code wants it.

        The library's thread may let go of the tensor a little later, so it should be one that lasts.
        """
        anything = tensor if tensor is not None and tensor.numel() else torch.zeros(1, device=self._device)
        work = self._alone.broadcast([anything], BroadcastOptions())
        work.wait()
        return work.boxed()

    def send(self, group: Any, tensor: Tensor, peer: int, tag: int) -> Any:
        """Sends a copy of a tensor and returns the `Work`; the receiver may not be ready yet."""
        copy = tensor.detach().contiguous().clone()
        work = group.send([_octets(copy.view(-1))], peer, tag)
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
            root: Group rank of the root; of a message, of its source.
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
        members, rank = group.size(), group.rank()
        sources = exchanges.pieces(name, members, rank, root)
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
        for out, parts in zip(outs, _all_to_all(group, name, outs, ins, rank, root), strict=True):
            if out.numel():
                out.copy_(exchanges.combine(reduction, parts))


def _root(root: int) -> BroadcastOptions:
    options = BroadcastOptions()
    options.rootRank = root
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
    group: Any, name: str, outs: list[Tensor], ins: list[Tensor], rank: int, root: int
) -> list[list[Tensor]]:
    """Sends each member what it needs and returns, for each of `outs`, the parts to be combined."""
    members = group.size()
    wanted = [exchanges.pieces(name, members, i, root) for i in range(members)]
    giving = [[ins[j] for sources in wanted[i] for who, j in sources if who == rank] for i in range(members)]
    getting = [[out.numel() for out, s in zip(outs, wanted[rank], strict=True) if any(w == i for w, _ in s)]
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
    for sources in wanted[rank]:
        # Every member sends at most one part for each result, in the order of the results.
        taken = []
        for who, _ in sources:
            size = getting[who].pop(0)
            taken.append(parts[who][:size])
            parts[who] = parts[who][size:]
        result.append(taken)
    return result
