"""Who holds the memory of a gradient: what is held elsewhere too, autograd copies instead of taking it over."""

from __future__ import annotations

import sys

import torch

Tensor = torch.Tensor


def held_alone(parameter: Tensor) -> bool:
    """Whether nothing but a parameter holds its gradient's memory."""
    grad = parameter.grad
    if grad is None:
        return False
    del grad
    address = parameter.grad.untyped_storage()._cdata  # type: ignore[union-attr]
    tensors = sys.getrefcount(parameter.grad) <= _ALONE[0]
    return tensors and torch._C._storage_Use_Count(address) <= _ALONE[1]


def _alone() -> tuple[int, int]:
    """Returns how often a gradient and its storage count as referred to when nothing but a parameter does so."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    count = sys.getrefcount(parameter.grad)
    return count, torch._C._storage_Use_Count(parameter.grad.untyped_storage()._cdata)


_ALONE = _alone()
