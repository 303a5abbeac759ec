"""Tells evaluation from training: it begins where a trained model is called in evaluation mode.

What runs within such a call needs no record, since nothing of it stays in the state; what comes out of it is tainted.
A call with gradients on a batch of the loader that training uses is training all the same (fine-tuning with frozen
statistics), and so is one before anything has been trained. A call of another module (an average of weights) evaluates
if it is in evaluation mode, without gradients, and on data that are of no batch; a teacher gets batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from prover.capture.user_line import user_line


class Evaluations:
    """Follows the calls of the trained modules.

    Attributes:
        line: Where in the program the evaluation in progress began; None outside of one.
    """

    def __init__(self) -> None:
        self.line: str | None = None
        self._inside: nn.Module | None = None
        self._depth = 0
        self._roots: list[nn.Module] = []
        self._others: set[int] = set()
        self._root_of: dict[int, nn.Module] = {}
        self._training_loaders: set[int] = set()
        self._switches = self._still = False
        self._hooks: list[Any] = []

    def open(self) -> None:
        """Begins to watch calls."""
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def close(self) -> None:
        """Watches no longer."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.line = self._inside = None

    def trains(self, roots: list[nn.Module], parameters: set[int], others: list[nn.Module]) -> None:
        """Says what is trained.

        Args:
            roots: Modules that are part of no other.
            parameters: Identities of the optimizers' parameters.
            others: Other modules that are attached.
        """
        self._roots = roots
        self._others = {id(part) for root in others for part in root.modules()}
        self._root_of = {
            id(part): root
            for root in roots
            for part in root.modules()
            if any(id(p) in parameters for p in part.parameters())
        }

    @property
    def loads(self) -> bool:
        """Whether the training takes its batches from loaders."""
        return bool(self._training_loaders)

    def trains_by(self, module: nn.Module) -> bool:
        """True if a call of a module, with gradients, is part of the training; notes in which mode that is."""
        root = self._root_of.get(id(module))
        if root is None or not (module.training or root.training or not self._evaluates(self.last_loader)):
            return False
        self._switches |= module.training
        self._still |= not (module.training or root.training)
        return True

    def between_trainings(self) -> bool:
        """True where models are in evaluation mode that are not trained in it, and no gradients are wanted."""
        if not self._roots or self._still or torch.is_grad_enabled():
            return False
        return not any(root.training for root in self._roots)

    def used_to_train(self, loaders: set[int]) -> None:
        """Says from which loaders (identities) the batches of a step came."""
        self._training_loaders |= loaders

    def fetches(self, loader: Any) -> bool:
        """True if a batch that is fetched now is meant for an evaluation."""
        return bool(self._roots) and not any(root.training for root in self._roots) and self._evaluates(loader)

    def _evaluates(self, loader: Any) -> bool:
        if not torch.is_grad_enabled():
            return True
        if not self._training_loaders:
            return self._switches
        return loader is not None and id(loader) not in self._training_loaders

    last_loader: Any = None
    """The loader from which the last batch was fetched."""

    outside: Callable[[Any], bool]
    """Whether the tensors that a module is given are of no batch."""

    def _enter(self, module: nn.Module, given: Any) -> None:
        if self._inside is module:
            self._depth += 1
        elif self._inside is None and not module.training and self._looks(module, given):
            self._inside, self._depth, self.line = module, 1, user_line()

    def _looks(self, module: nn.Module, given: Any) -> bool:
        """True if a call of a module in evaluation mode is an evaluation."""
        root = self._root_of.get(id(module))
        if root is not None:
            return not root.training and self._evaluates(self.last_loader)
        return id(module) in self._others and not torch.is_grad_enabled() and self.outside(given)

    def _leave(self, module: nn.Module, *_: Any) -> None:
        if self._inside is module:
            self._depth -= 1
            if not self._depth:
                self._inside = self.line = None
