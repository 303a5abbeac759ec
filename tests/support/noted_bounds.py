"""The bounds that an operation's results are rounded within, under a policy."""

from __future__ import annotations

from typing import Any

import torch

from prover.capture.generators import Generators
from prover.capture.recording_context import Recording
from weighbridge.numerics.conformance import bound_policy
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.rounding.bound import Bound, dense_bound


class Bounds(Recording):
    """Notes the bounds of what is rounded."""

    def __init__(self, policy: str) -> None:
        super().__init__(1, Generators(), bound_policy.named(policy))
        self.noted: list[torch.Tensor] = []
        self.begin(0)

    def rounded(self, wide: torch.Tensor, bound: Bound, dtype: torch.dtype) -> torch.Tensor:
        self.noted.append(dense_bound(wide, bound).clone())
        return super().rounded(wide, bound, dtype)


def bounds(policy: str, op: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Returns the bounds of all elements of all results in one row, float64."""
    context = Bounds(policy)
    evaluate(op, args, kwargs, context)
    return torch.cat([each.reshape(-1).double() for each in context.noted])
