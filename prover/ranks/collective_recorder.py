"""Records a collective as one operation of the closed set of `weighbridge.numerics.exchanges`, and performs it.

It is performed by the Recorder's own exchange (`prover.ranks.exchange`), so that the result has one right answer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group

from prover.capture.group_uses import GroupUse
from prover.capture.recording_context import Recording
from prover.capture.step_capture import Capture
from prover.ranks.exchange import Exchange
from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics import exchanges
from weighbridge.transcript import collectives
from weighbridge.transcript.tape import Node

Tensor = torch.Tensor

_BY_NAME: Callable[[Any], Any] = _resolve_process_group

# The numbers of c10d's enumeration of reductions, in the names that functional collectives use.
_BY_NUMBER = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")


class CollectiveRecorder:
    """Records the collectives of one step."""

    def __init__(self, exchange: Exchange, capture: Capture) -> None:
        self._exchange, self._capture = exchange, capture
        self.uses: list[GroupUse] = []
        """The group of each collective."""
        self.waits = False
        """Whether there was a barrier, which is on no tape."""

    def record(
        self, name: str, group: Any, outs: Sequence[Tensor], ins: Sequence[Tensor], reduction: str = "", root: int = 0
    ) -> None:
        """Puts a collective on the tape and performs it."""
        ranks = tuple(dist.get_process_group_ranks(group))

        def perform() -> None:
            self._exchange.exchange(group, name, outs, ins, reduction, root, 0)

        self._node(name, group, outs, ins, reduction, ranks, root, 0, perform)

    def _node(
        self, name: str, group: Any, outs: Sequence[Tensor], ins: Sequence[Tensor], reduction: str,
        ranks: tuple[int, ...], root: int, tag: int, perform: Callable[[], None],
    ) -> None:  # fmt: skip
        capture, context = self._capture, self._capture.context
        encoded_ins, encoded_outs = capture.encode(list(ins), False), capture.encode(list(outs), False)
        op = len(capture.tape.nodes)
        context.begin(op)
        self.uses.append(GroupUse(op, group.group_name, weakref.ref(group)))

        def running() -> None:
            capture.running = 1
            try:
                perform()
            finally:
                capture.running = 0

        account(context, outs, ins, reduction, running)
        capture.written.update(capture.slots[out.untyped_storage()._cdata] for out in outs)
        args = (encoded_outs, encoded_ins, ("s", reduction), ("l", ranks), root, tag)
        capture.tape.nodes.append(
            Node(f"{collectives.PREFIX}{name}.default", args, {}, (), (), None, capture.module_path())
        )
        capture.owner.after_operation(capture)

    def send(self, tensor: Tensor, group: Any, peer: int, tag: int) -> Any:
        """Records and sends a message; returns its `Work`."""
        ranks, work = dist.get_process_group_ranks(group), []
        pair = dist.get_rank(), ranks[peer]
        self._node("send", group, [], [tensor], "", pair, 0, tag,
                   lambda: work.append(self._exchange.send(group, tensor, peer, tag)))  # fmt: skip
        return work[0]

    def receive(self, tensor: Tensor, group: Any, peer: int, tag: int) -> Any:
        """Receives a message and records it; returns a completed `Work`."""
        pair = dist.get_process_group_ranks(group)[peer], dist.get_rank()
        self._node("recv", group, [tensor], [], "", pair, 0, tag,
                   lambda: self._exchange.exchange(group, "recv", [tensor], [], "", peer, tag))  # fmt: skip
        return self.done()

    def done(self, reduced: Tensor | None = None) -> Any:
        """Returns a completed `Work`, with the tensor that DDP expects of an all-reduce."""
        return self._exchange.done(None if reduced is None else reduced.detach())

    def fresh(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Returns a new tensor for a functional collective, made by a recorded operation."""
        with self._capture:
            return torch.empty(tuple(shape), dtype=like.dtype, device=like.device)


def account(
    context: Recording, outs: Sequence[Tensor], ins: Sequence[Tensor], reduction: str, perform: Callable[[], None]
) -> None:
    """Performs the collective that a context has begun, and notes what the step's record says of it."""
    contributed = collectives.commit(ins)  # before the exchange, which may write to the same tensors
    perform()
    if reduction:
        for out in outs:
            settle_result(out, context.exact)
    context.collectives.append((context.op, contributed, collectives.commit(outs)))


def settle_result(out: Tensor, exact: Callable[[Tensor], None]) -> None:
    """Accounts for the checksum of a reduced result, in row-major order."""
    if out.dtype in exchanges.CANONICAL and out.numel():
        flat = out.detach().contiguous().reshape(-1)
        exact(flat)


def group_of(value: Any) -> Any:
    """The process group that an operation names: itself, as TorchScript object, or by name."""
    if isinstance(value, str):
        return _BY_NAME(value)
    return dist.ProcessGroup.unbox(value) if isinstance(value, torch.ScriptObject) else value


def reduction_of(value: Any) -> str:
    """The name of a reduction that an operation names."""
    if isinstance(value, str):
        found = value.lower()
    else:
        try:
            number = int(value.op())
        except AttributeError:  # PyTorch 2.6
            raise RefusedOperationError(
                f"PyTorch {torch.__version__} does not tell which reduction a collective makes; record jobs on several "
                "ranks with a newer one (2.13 is tested)"
            ) from None
        found = _BY_NUMBER[number] if number < len(_BY_NUMBER) else f"number {number}"
    if found not in exchanges.REDUCTIONS:
        raise RefusedOperationError(f"the reduction {found} has no rule; use one of {', '.join(exchanges.REDUCTIONS)}")
    return found


def split(t: Tensor, members: int) -> list[Tensor]:
    """The parts of a tensor, one for each member of a group."""
    t = t.detach()
    if t.is_contiguous() and t.numel() % members == 0:
        return list(torch.split(t.view(-1), t.numel() // members)) if t.numel() else [t.view(-1)] * members
    if not t.dim() or t.shape[0] % members:
        raise RefusedOperationError(f"a collective over {members} ranks cannot split a tensor of {tuple(t.shape)}")
    return list(torch.split(t, t.shape[0] // members))


def pieces(t: Tensor, sizes: Sequence[int], members: int) -> list[Tensor]:
    """The parts of a tensor by sizes of its first dimension; equal parts without sizes."""
    return list(torch.split(t.detach(), list(sizes))) if len(sizes) else split(t, members)
