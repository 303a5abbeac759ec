"""Catches copies and NumPy views of tensors, which PyTorch makes without telling the dispatcher."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Tensor = torch.Tensor


class UndispatchedChanges(TorchFunctionMode):
    """Watches what PyTorch does without going through its dispatcher.

    `copy.deepcopy` of a tensor copies its storage: it is made an operation. Arrays of NumPy's share a tensor's memory:
    those that are asked for within a step cannot be written to, since no replay would.
    """

    def __init__(self, recorded: Callable[[Tensor], bool] = lambda t: True) -> None:
        """Prepares for a step.

        Args:
            recorded: Whether a tensor's memory is recorded; of what is not, nothing is changed.
        """
        super().__init__()
        self._recorded = recorded

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.numpy or func is Tensor.__array__:
            array = func(*args, **(kwargs or {}))
            if not array.flags.owndata and self._recorded(args[0]):
                array.flags.writeable = False
            return array
        copies = func is Tensor.__deepcopy__ and type(args[0]) is Tensor and args[0].is_leaf
        if not copies or not self._recorded(args[0]):
            return func(*args, **(kwargs or {}))
        original, memo = args
        if id(original) not in memo:
            copied = original.detach().clone().requires_grad_(original.requires_grad)
            memo[id(original)] = copied
            if original.grad is not None:
                copied.grad = copy.deepcopy(original.grad, memo)
            copied.__dict__.update(copy.deepcopy(original.__dict__, memo))
        return memo[id(original)]
