"""Catches copies and NumPy views of tensors, which PyTorch makes without telling the dispatcher."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Tensor = torch.Tensor


class UndispatchedChanges(TorchFunctionMode):
    """Watches what PyTorch does without going through its dispatcher.

    `copy.deepcopy` of a tensor copies its storage: it is made an operation. Arrays of NumPy's share a tensor's memory:
    those that are asked for within a step cannot be written to, since no replay would.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.numpy or func is Tensor.__array__:
            array = func(*args, **(kwargs or {}))
            if not array.flags.owndata:
                array.flags.writeable = False
            return array
        if func is not Tensor.__deepcopy__ or type(args[0]) is not Tensor or not args[0].is_leaf:
            return func(*args, **(kwargs or {}))
        original, memo = args
        if id(original) not in memo:
            copied = original.detach().clone().requires_grad_(original.requires_grad)
            memo[id(original)] = copied
            if original.grad is not None:
                copied.grad = copy.deepcopy(original.grad, memo)
            copied.__dict__.update(copy.deepcopy(original.__dict__, memo))
        return memo[id(original)]
