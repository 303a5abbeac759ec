"""The collectives of a step that runs as a program: the exchange is called as a recorded step calls it.

Other ranks do not notice how this one came to a collective, so each may run a program or be recorded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group

from prover.capture.group_uses import GroupUse
from prover.capture.recording_context import Recording
from prover.ranks.collective_recorder import account
from prover.ranks.exchange import Exchange
from weighbridge.transcript.collectives import PREFIX
from weighbridge.transcript.tape import Node

Tensor = torch.Tensor

_BY_NAME: Callable[[Any], Any] = _resolve_process_group


class ProgramCalls:
    """Performs them, over the groups that they went over when the step was recorded one by one."""

    def __init__(self, exchange: Exchange, uses: Sequence[GroupUse]) -> None:
        self._exchange = exchange
        self._groups = {use.op: use.group() for use in uses}

    def perform(self, context: Recording, node: Node, outs: Sequence[Tensor], ins: Sequence[Tensor]) -> None:
        """Performs the collective that `context` has begun, and accounts for it.

        Args:
            context: What the step is evaluated in.
            node: The collective.
            outs: Tensors to be written.
            ins: Tensors that this rank contributes.
        """
        exchange, group = self._exchange, self._groups[context.op]
        name = node.op.removeprefix(PREFIX).partition(".")[0]
        _, _, (_, reduction), (_, ranks), root, tag = node.args

        def perform() -> None:
            if name == "send":
                exchange.send(group, ins[0], _member(group, ranks[1]), tag)
            elif name == "recv":
                exchange.exchange(group, name, outs, ins, reduction, _member(group, ranks[0]), tag)
            else:
                exchange.exchange(group, name, outs, ins, reduction, root, tag)

        account(context, outs, ins, reduction, perform)


def stand(uses: Sequence[GroupUse]) -> bool:
    """Whether all groups are still those that PyTorch knows by their names."""
    return all(use.group() is not None and _named(use.name) is use.group() for use in uses)


def _named(name: str) -> Any:
    try:
        return _BY_NAME(name)
    except RuntimeError:  # it was destroyed
        return None


def _member(group: Any, rank: int) -> int:
    return dist.get_process_group_ranks(group).index(rank)
