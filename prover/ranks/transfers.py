"""How tensors travel between the ranks of a group: as bytes, complete on return, in copies that the library may keep.

A thread of the library may let go of what it sent a little later, and births and deaths of the program's own tensors
are on the tape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import AllgatherOptions, AllToAllOptions, BroadcastOptions

from weighbridge.core.errors import UsageError

Tensor = torch.Tensor

_HEAD = 64
"""Bytes before what is sent in a call that all members agree on; a multiple of every element's size."""


def octets(t: Tensor) -> Tensor:
    """Returns the bytes of a flat tensor, in the same memory."""
    return t.view(torch.uint8)


def broadcast(group: Any, buffer: Tensor, root: int) -> None:
    """Overwrites a flat tensor, which the library may keep for a while, with that of the root."""
    options = BroadcastOptions()
    options.rootRank = root
    group.broadcast([octets(buffer)], options).wait()


def all_gather(group: Any, mine: Tensor) -> list[Tensor]:
    """Returns what every member gives, in the order of the group.

    Args:
        group: The process group.
        mine: What this rank gives: flat, of the same number of bytes on all ranks.
    """
    sent = octets(mine.clone())
    received = torch.empty(group.size() * sent.numel(), dtype=torch.uint8, device=mine.device)
    group._allgather_base(received, sent, AllgatherOptions()).wait()
    return [part.view(mine.dtype) for part in torch.split(received, sent.numel())]


def all_to_all(group: Any, gives: Sequence[Tensor], takes: Sequence[int], like: Tensor, call: str = "") -> list[Tensor]:
    """Sends each member one flat tensor and returns one of each.

    Args:
        group: The process group.
        gives: A flat tensor for each member, in the order of the group; may be empty.
        takes: Elements that each member has for this rank.
        like: A tensor of the dtype and on the device of those that are returned.
        call: What this rank takes part in, which all members have to agree on; empty if they need not. Without it, what
            is shorter than expected would leave garbage at the receiver.

    Raises:
        UsageError: A member takes part in something else.
    """
    head = _head(call).to(like.device)
    sent = torch.cat([part for t in gives for part in (head, octets(t))])
    sizes = [head.numel() + n * like.itemsize for n in takes]
    received = torch.empty(sum(sizes), dtype=torch.uint8, device=like.device)
    given = [head.numel() + t.numel() * t.itemsize for t in gives]
    group.alltoall_base(received, sent, sizes, given, AllToAllOptions()).wait()
    parts = torch.split(received, sizes)
    heads = [part[: head.numel()] for part in parts]
    if call and not bool((torch.stack(heads) == head).all()):
        raise _disagreement(call, heads)
    return [part[head.numel() :].view(like.dtype) for part in parts]


def _head(call: str) -> Tensor:
    return torch.tensor(list(call.encode()[:_HEAD].ljust(_HEAD, b"\0")) if call else [], dtype=torch.uint8)


def _disagreement(call: str, heads: Sequence[Tensor]) -> UsageError:
    calls = [bytes(head.tolist()).rstrip(b"\0").decode("ascii", "replace") for head in heads]
    member = next(i for i, other in enumerate(calls) if other != call)
    return UsageError(
        f"a collective of this rank is {call}, and that of member {member} of its group is {calls[member]}; let all "
        "ranks make the same call"
    )
