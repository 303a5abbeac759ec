"""Steps of a small training on several ranks, for `sharded_job.py`: by hand as people do it, and by ranks that cheat.

Where a rank cheats, it is rank 1, and what it adds is switched off: its numbers are those of an honest step, unless the
name says that they are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Batch = dict[str, torch.Tensor]
Update = Callable[[nn.Module, torch.optim.Optimizer, Batch], None]


def gradients(model: nn.Module, batch: Batch) -> None:
    nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()


def extra(like: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Nothing, made of the batch; what it is when a number of the batch says so, is for the batch to say."""
    switch = batch["x"][0, 0] > 1e6
    return (batch["x"].flatten().repeat(4)[: like.numel()] * switch).view_as(like)


def _sum_of_all(model: nn.Module) -> None:
    for p in model.parameters():
        assert p.grad is not None
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """What tutorials do."""
    gradients(model, batch)
    _sum_of_all(model)
    optimizer.step()
    optimizer.zero_grad()


def brought(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """Rank 1 adds to what all ranks sum."""
    gradients(model, batch)
    for p in model.parameters():
        assert p.grad is not None
        bucket = p.grad.clone()
        if dist.get_rank() == 1:
            bucket += extra(bucket, batch)
        dist.all_reduce(bucket)
        p.grad.copy_(bucket / dist.get_world_size())
    optimizer.step()
    optimizer.zero_grad()


def sent(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """Rank 1 sends rank 0 what it adds to its gradients."""
    gradients(model, batch)
    for p in model.parameters():
        assert p.grad is not None
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
        message = extra(p.grad, batch) if dist.get_rank() == 1 else torch.empty_like(p.grad)
        dist.broadcast(message, src=1)
        p.grad += message
    optimizer.step()
    optimizer.zero_grad()


def overwritten(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """Rank 1's weights go to all ranks after the step, with what it adds to them."""
    by_hand(model, optimizer, batch)
    with torch.no_grad():
        for p in model.parameters():
            if dist.get_rank() == 1:
                p += extra(p, batch)
            dist.broadcast(p, src=1)


def hooked(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """Rank 1 adds a thousandth of its batch to a gradient in its backward pass: these are other numbers."""
    hooks = []
    if dist.get_rank() == 1:
        weight = next(model.parameters())
        hooks.append(weight.register_hook(lambda g: g + 1e-3 * batch["x"].flatten()[:WIDTH]))
    by_hand(model, optimizer, batch)
    for hook in hooks:
        hook.remove()


WIDTH = 8


def drawn(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """Rank 1's loss draws weights to its batch: a gradient, but of something else than a model's loss."""
    if dist.get_rank() == 1:
        loss = sum((p - batch["x"].flatten()[0]).square().sum() for p in model.parameters())
        first = next(model.parameters())
        (loss + (first[:4] - batch["x"]).square().sum()).backward()
    else:
        gradients(model, batch)
    _sum_of_all(model)
    optimizer.step()
    optimizer.zero_grad()


def inside(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """Rank 0 sums in its backward pass what rank 1 brings after its own."""
    weight = next(model.parameters())
    if dist.get_rank() == 0:
        hook = weight.register_hook(_summed)
        gradients(model, batch)
        hook.remove()
    else:
        gradients(model, batch)
        assert weight.grad is not None
        bucket = weight.grad + extra(weight, batch)
        dist.all_reduce(bucket)
        weight.grad.copy_(bucket / 2)
    for p in list(model.parameters())[1:]:
        assert p.grad is not None
        dist.all_reduce(p.grad)
        p.grad /= 2
    optimizer.step()
    optimizer.zero_grad()


def held(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """Rank 0's loss reads what rank 1 holds, and rank 1 changes it by hand: weights that no update makes."""
    shift: torch.Tensor = model.shift  # type: ignore[assignment]
    message = shift.clone()
    dist.broadcast(message, src=1)
    gradients(model, {**batch, "x": batch["x"] + message} if dist.get_rank() == 0 else batch)
    _sum_of_all(model)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 1:
        shift.copy_(batch["x"][0])


def apart(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """Ranks whose weights differ from the beginning add up their gradients, which are then the gradient of nothing."""
    by_hand(model, optimizer, batch)


def _hooked(change: Callable[[torch.Tensor, Batch], torch.Tensor]) -> Update:
    """A training by hand whose first weights' gradient a hook changes, on all ranks."""

    def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
        hook = next(model.parameters()).register_hook(lambda g: change(g, batch))
        by_hand(model, optimizer, batch)
        hook.remove()

    return update


def _of_rank_1(like: torch.Tensor, batch: Batch) -> torch.Tensor:
    return extra(like, batch) if dist.get_rank() == 1 else torch.zeros_like(like)


def _relayed(gradient: torch.Tensor, batch: Batch) -> torch.Tensor:
    """What rank 1 makes of its batch reaches all in their backward passes."""
    message = _of_rank_1(gradient, batch)
    dist.all_reduce(message)
    return gradient + message


def _among_gradients(gradient: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Rank 1 brings what it makes of its batch where others bring their gradients."""
    message = torch.cat([gradient, _of_rank_1(gradient, batch)])
    dist.all_reduce(message)
    return (message[: len(gradient)] + message[len(gradient) :]) / 2


def _instead(gradient: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Rank 1 brings what it makes of its batch, and no gradient, where rank 0 brings its own."""
    bucket = gradient.clone() if dist.get_rank() == 0 else extra(gradient, batch)
    dist.all_reduce(bucket)
    return bucket if dist.get_rank() == 0 else gradient


class _Scaled(torch.autograd.Function):
    """Scales by what rank 1 holds, which it sends once more in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, own: torch.Tensor, more: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.own = own, more
        scale = own.clone()
        dist.broadcast(scale, src=1)
        return x * scale

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        own, more = ctx.own
        scale = own.clone() if more is own else own + more
        dist.broadcast(scale, src=1)
        return g * scale, None, None


def _sent_again(honest: bool) -> Update:
    def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
        own = (batch["x"][0] > -1e6).to(torch.float32)
        hidden = _Scaled.apply(nn.functional.linear(batch["x"], model.first), own, own if honest else extra(own, batch))  # type: ignore[no-untyped-call]
        nn.functional.cross_entropy(model(hidden), batch["y"]).backward()
        _sum_of_all(model)
        optimizer.step()
        optimizer.zero_grad()

    return update


def _summed(gradient: torch.Tensor) -> torch.Tensor:
    bucket = gradient.clone()
    dist.all_reduce(bucket)
    return bucket / 2


UPDATES: dict[str, Update] = {
    each.__name__.replace("_", "-"): each
    for each in (by_hand, brought, sent, overwritten, hooked, drawn, inside, held, apart)
} | {
    "lingering": by_hand,
    "silently": _hooked(lambda g, batch: g + _of_rank_1(g, batch)),
    "relayed": _hooked(_relayed),
    "among": _hooked(_among_gradients),
    "instead": _hooked(_instead),
    "sent-again": _sent_again(honest=True),
    "sent-other": _sent_again(honest=False),
}
