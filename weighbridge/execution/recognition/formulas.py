"""The optimizers that the Verifier knows, in float64: what their formula makes of old weights, state and gradients.

The formulas are PyTorch's own reference implementations (one tensor at a time), which the Verifier runs itself on the
recorded numbers. Only the names of classes come from the Prover, and numbers by which they are computed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from weighbridge.execution.recognition.derivation import UnderivableError
from weighbridge.program.operands import UNFIT

Tensor = torch.Tensor

_NAMES = (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD",
    "Adafactor", "Muon",
)  # fmt: skip
KNOWN: dict[str, type[torch.optim.Optimizer]] = {
    name: getattr(torch.optim, name) for name in _NAMES if hasattr(torch.optim, name)
}
"""Class by name; an older PyTorch has fewer."""

_FORMS = {"foreach": False, "fused": False, "capturable": False, "differentiable": False}
"""How an optimizer is computed, which changes nothing that is computed."""


@dataclass(slots=True)
class Operand:
    """One parameter before a step.

    Attributes:
        weights: Its value.
        gradient: Its gradient; None if it has none.
        state: The optimizer's tensors for it; empty before its first step.
    """

    weights: Tensor
    gradient: Tensor | None
    state: dict[str, Tensor] = field(default_factory=dict)

    def holds(self, key: str) -> bool:
        """Whether a part of the state is numbers of the parameter's elements, and no count of steps."""
        part = self.state[key]
        return part.is_floating_point() and (part.dim() > 0 or (self.weights.dim() == 0 and key != "step"))

    def wide(self) -> Operand:
        """The same in float64."""
        return Operand(
            self.weights.double(),
            None if self.gradient is None else self.gradient.double(),
            {k: v.double() if self.holds(k) else v.clone() for k, v in self.state.items()},
        )


@dataclass(slots=True)
class Result:
    """One parameter after a step."""

    weights: Tensor
    state: dict[str, Tensor]


def apply(optimizer: str, numbers: Mapping[str, Any], operands: Sequence[Operand]) -> list[Result]:
    """Returns what an optimizer's step makes of parameters in float64.

    Args:
        optimizer: Name of its class.
        numbers: Its hyperparameters; those that its class does not have are left out.
        operands: Its parameters, in float64.

    Raises:
        UnderivableError: There is no such optimizer here, or it does not take these numbers.
    """
    kind = KNOWN.get(optimizer)
    if kind is None:
        raise UnderivableError(f"the optimizer {optimizer} is none that is known here")
    given = {k: v for k, v in {**numbers, **_FORMS}.items() if k in _taken(optimizer)}
    try:
        parameters = [torch.nn.Parameter(each.weights.clone(), requires_grad=True) for each in operands]
        made = kind(parameters, **given)
        for parameter, each in zip(parameters, operands, strict=True):
            parameter.grad = None if each.gradient is None else each.gradient.clone()
            if each.state:
                made.state[parameter] = {k: v.clone() for k, v in each.state.items()}
        made.step()
        return [
            Result(p.detach(), {k: v for k, v in made.state[p].items() if isinstance(v, Tensor)}) for p in parameters
        ]
    except UNFIT as error:
        text = (str(error).splitlines() or [""])[0][:120]
        raise UnderivableError(f"{optimizer} does not take what is claimed of it: {text}") from None


@cache
def _taken(optimizer: str) -> frozenset[str]:
    """The hyperparameters of a class that is known."""
    return frozenset(inspect.signature(KNOWN[optimizer]).parameters) - {"params"}
