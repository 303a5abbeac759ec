"""Notices when a program without an optimizer updates its parameters itself: `p.data -= lr * p.grad`."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import ReferenceType, ref

import torch
from torch import Tensor


class Updates:
    """Knows the tensors that gradients are wanted of, and sees when those that have one are written to."""

    def __init__(self) -> None:
        """Prepares; no tensor is known yet."""
        self._wanted: dict[int, ReferenceType[Tensor]] = {}
        self._trained: dict[int, ReferenceType[Tensor]] = {}

    def seen(self, operands: Iterable[Tensor]) -> None:
        """Notes operands that gradients are wanted of; to be called for every operation.

        Args:
            operands: Tensors, as the program has them.
        """
        if torch.is_grad_enabled():
            for t in operands:
                if t.requires_grad and t.is_leaf:
                    self._wanted[t.untyped_storage()._cdata] = ref(t)

    def made(self, changed: Iterable[Tensor]) -> bool:
        """True if an operation has updated a parameter: one that a backward pass has given a gradient.

        Args:
            changed: What the operation wrote to.
        """
        if not self._wanted or torch._C._current_graph_task_id() != -1:
            return False
        updated = False
        for t in changed:
            address = t.untyped_storage()._cdata
            parameter = self._wanted[address]() if address in self._wanted else None
            if parameter is not None and parameter.untyped_storage()._cdata == address and parameter.grad is not None:
                self._trained[address] = self._wanted[address]
                updated = True
        return updated

    @property
    def parameters(self) -> list[Tensor]:
        """What was updated so far, as far as it lives; its gradients tell what else is trained with it."""
        if not self._trained:
            return []
        held = (each() for each in self._wanted.values())
        return [
            t for t in held if t is not None and (t.grad is not None or t.untyped_storage()._cdata in self._trained)
        ]
