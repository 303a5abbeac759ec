"""The exchange between the ranks of a job, which performs its collectives.

It goes through the process group that the program used, below the Recorder's mode, and is complete when it returns:
contributions travel as bytes and are combined by `weighbridge.numerics.exchanges` (docs/sharding.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch._C._distributed_c10d import BroadcastOptions

from prover.ranks import transfers
from weighbridge.core.errors import UsageError
from weighbridge.numerics import exchanges

Tensor = torch.Tensor

_PIECE = 1 << 24
"""Elements that are exchanged at once, so that the buffers stay small."""


class Exchange:
    """One rank's end of the exchange."""

    _combined_whole: ClassVar[int] = 1 << 19
    """Bytes of all contributions to a reduction together, up to which a rank that gets the result combines all:
    that is more bytes, but one message in place of two (docs/benchmarks.md#collectives)."""

    def __init__(self, alone: Any, device: torch.device) -> None:
        """Prepares the exchange.

        Args:
            alone: A process group of this rank alone, with one thread.
            device: Where the process group wants tensors.
        """
        self._alone, self._device = alone, device
        self._sent: list[tuple[Any, Tensor]] = []

    def done(self, tensor: Tensor | None) -> Any:
        """Returns a completed `Work` whose future holds a tensor, as PyTorch's C++ code wants it."""
        anything = tensor if tensor is not None and tensor.numel() else torch.zeros(1, device=self._device)
        work = self._alone.broadcast([anything], BroadcastOptions())
        work.wait()
        if anything is tensor:
            # The library's one thread lets go of a tensor after its work is complete, and before it begins another.
            # Until then, a tensor that the program drops would live on: in some runs longer than its step.
            self._alone.broadcast([torch.zeros(1, device=self._device)], BroadcastOptions()).wait()
        return work.boxed()

    def send(self, group: Any, tensor: Tensor, peer: int, tag: int) -> Any:
        """Sends a copy of a tensor and returns the `Work`; the receiver may not be ready yet."""
        copy = tensor.detach().contiguous().clone()
        work = group.send([transfers.octets(copy.view(-1))], peer, tag)
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
            group.recv([transfers.octets(flat_outs[0])], root, tag).wait()
        elif name == "broadcast":
            buffer = flat_ins[0].clone() if flat_ins else flat_outs[0]
            transfers.broadcast(group, buffer, root)
            flat_outs[0].copy_(buffer)
        else:
            self._combined(group, name, flat_outs, flat_ins, reduction, root)
        for out, flat in zip(outs, flat_outs, strict=True):
            out.detach().copy_(flat.view(out.shape))

    def _combined(
        self, group: Any, name: str, outs: list[Tensor], ins: list[Tensor], reduction: str, root: int
    ) -> None:
        sizes = {t.numel() for t in (*ins, *outs)}
        if name != "all_to_all" and len(sizes) > 1:
            raise UsageError(f"{name} of tensors of different sizes {sorted(sizes)}; pad them to the same size")
        only = root if name == "reduce" else None
        to = "" if only is None else f" to {root}"
        call = f"{name} {reduction}{to} of {ins[0].numel()} {ins[0].dtype}" if reduction else ""
        if name in ("all_reduce", "reduce") and group.size() * ins[0].numel() * ins[0].itemsize > self._combined_whole:
            for piece in _pieces(ins[0].numel()):
                _by_shares(group, call, [out[piece] for out in outs], ins[0][piece], reduction, only)
        elif name == "all_gather":
            for piece in _pieces(ins[0].numel()):
                for out, theirs in zip(outs, transfers.all_gather(group, ins[0][piece]), strict=True):
                    out[piece] = theirs
        else:
            _directly(group, name, call, outs, ins, reduction, root)


def _pieces(size: int) -> list[slice]:
    return [slice(first, min(first + _PIECE, size)) for first in range(0, size, _PIECE)]


def _by_shares(group: Any, call: str, outs: list[Tensor], mine: Tensor, reduction: str, root: int | None) -> None:
    """Reduces one tensor: every rank combines its share of the elements, and gives the result to those who get it.

    What a rank gives away is rounded already, so it sends 2 (ranks - 1) / ranks of the data. Elements do not depend on
    each other, so the result is that of combining everything in one place.

    Args:
        group: The process group.
        call: What all members take part in.
        outs: The flat result, if this rank gets it.
        mine: What this rank contributes, flat.
        reduction: How contributions are combined.
        root: Group rank of the only member that gets the result; None if all do.
    """
    members, rank = group.size(), group.rank()
    width = -(-mine.numel() // members)
    shares = [mine[i * width : (i + 1) * width] for i in range(members)]  # the last ones may be shorter, or empty
    sizes = [share.numel() for share in shares]
    parts = transfers.all_to_all(group, shares, [sizes[rank]] * members, mine, call)
    combined = exchanges.combine(reduction, parts)  # of nothing too: all ranks refuse what has no rule
    gets = [root in (None, i) for i in range(members)]
    gives = [combined if getting else combined[:0] for getting in gets]
    whole = transfers.all_to_all(group, gives, sizes if gets[rank] else [0] * members, mine)
    for out in outs:
        torch.cat(whole, out=out)


def _directly(
    group: Any, name: str, call: str, outs: list[Tensor], ins: list[Tensor], reduction: str, root: int
) -> None:
    """Sends each member the one tensor that it needs of this rank, and combines what comes."""
    members, like = group.size(), (ins or outs)[0]
    gives = [_given_to(i, name, ins, root, like) for i in range(members)]
    sources = exchanges.pieces(name, members, group.rank(), root)
    takes = [0] * members
    for out, wanted in zip(outs, sources, strict=True):
        for who, _ in wanted:
            takes[who] = out.numel()
    parts = transfers.all_to_all(group, gives, takes, like, call)
    for out, wanted in zip(outs, sources, strict=True):
        if out.numel():
            out.copy_(exchanges.combine(reduction, [parts[who] for who, _ in wanted]))


def _given_to(member: int, name: str, ins: list[Tensor], root: int, like: Tensor) -> Tensor:
    if not ins or (name in ("reduce", "gather") and member != root):
        return like.new_empty(0)
    return ins[member if len(ins) > 1 else 0]
