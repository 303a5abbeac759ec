"""Puts the rounding into a model: at what every leaf module returns, and at the gradients it passes back.

Published: the output of every module without children by a forward hook, its `grad_input` by a full backward hook, and
the gradient of the logits. Full backward hooks make views that residual additions in place may not write to, so the
gradients are caught here by an identity before the module: same values, same places, and models need no changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

Tensor = torch.Tensor
Round = Callable[[Tensor, str], Tensor]
"""Rounds a float64 tensor that a kind of module made; `Linear`, or `Linear.backward` for a gradient."""


class _Output(torch.autograd.Function):
    """Rounds in the forward direction; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounds: Round, kind: str) -> Tensor:
        return rounds(x, kind)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None, None


class _Gradient(torch.autograd.Function):
    """Rounds in the backward direction; the value passes unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounds: Round, kind: str) -> Tensor:
        ctx.rounds, ctx.kind = rounds, kind
        return x.clone()  # a view could not be written to in place by the module

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.rounds(grads[0], ctx.kind), None, None


def _floats(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: change(t) if t.is_floating_point() else t, tree)


class Hooks:
    """Has every leaf module of a float64 model rounded while this is attached.

    Attributes:
        last: What the last module to run returned: the logits, whose gradient is rounded too.
    """

    def __init__(self, model: nn.Module, rounds: Round) -> None:
        """Attaches the hooks.

        Args:
            model: In float64.
            rounds: Called in the order in which results are made; what it returns takes their place.
        """
        self.last: Tensor | None = None
        self._rounds = rounds
        self._handles: list[RemovableHandle] = []
        for module in model.modules():
            if next(module.children(), None) is None:
                self._handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
                self._handles.append(module.register_forward_hook(self._after))

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        kind = f"{type(module).__name__}.backward"

        def caught(t: Tensor) -> Tensor:
            return cast(Tensor, _Gradient.apply(t, self._rounds, kind)) if t.requires_grad else t  # type: ignore[no-untyped-call]

        return _floats(args, caught), _floats(kwargs, caught)

    def _after(self, module: nn.Module, args: Any, output: Any) -> Any:
        def rounded(t: Tensor) -> Tensor:
            self.last = cast(Tensor, _Output.apply(t, self._rounds, type(module).__name__))  # type: ignore[no-untyped-call]
            return self.last

        return _floats(output, rounded)

    def round_gradient_of_logits(self) -> None:
        """Has the gradient of the logits rounded; to be called between the loss and its backward pass."""
        if self.last is not None and self.last.requires_grad:
            self.last.register_hook(lambda grad: self._rounds(grad, "logits.backward"))  # type: ignore[no-untyped-call]

    def detach(self) -> None:
        """Takes the hooks off again."""
        for handle in self._handles:
            handle.remove()
