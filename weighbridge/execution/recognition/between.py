"""What gradients went through between the backward pass and the optimizer: one factor for all, and one bound for all.

Clipping by norm and scaling of losses are a factor; clipping by value is a bound. Neither is claimed: both are solved
for, and stated. Anything else is not recognised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from weighbridge.execution.recognition.acceptance import excess
from weighbridge.execution.recognition.derivation import UnderivableError
from weighbridge.execution.recognition.noise import unit

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Between:
    """A factor, and a bound that no element's absolute value exceeds after it.

    Attributes:
        factor: One number for all gradients.
        bound: One number for all elements; infinite if there is none.
    """

    factor: float = 1.0
    bound: float = math.inf

    @property
    def numbers(self) -> int:
        """How many numbers that is which nothing else gives."""
        return (self.factor != 1.0) + math.isfinite(self.bound)

    def of(self, gradient: Tensor) -> Tensor:
        """Returns what it makes of a gradient (float64)."""
        scaled = self.factor * gradient
        return scaled.clamp(-self.bound, self.bound) if math.isfinite(self.bound) else scaled


@dataclass(slots=True)
class Pair:
    """One parameter's gradient.

    Attributes:
        name: Of the parameter.
        left: What the backward pass left (float64).
        read: What the optimizer read (float64, the same shape).
        dtype: Its recorded type.
    """

    name: str
    left: Tensor
    read: Tensor
    dtype: torch.dtype


@dataclass(slots=True)
class Shared:
    """What a group of ranks has together, by reference of a leaf of one of them (float64).

    Attributes:
        ranks: The group.
        left: The sum of what their backward passes left.
        exact: The sum of the Verifier's own gradients.
        accepted: How far from it is accepted.
    """

    ranks: tuple[int, ...]
    left: dict[int, Tensor]
    exact: dict[int, Tensor]
    accepted: dict[int, Tensor]


def solve(pairs: Sequence[Pair]) -> Between:
    """Returns what lies between.

    Raises:
        UnderivableError: It is more than one factor and one bound for all.
    """
    if all(torch.equal(each.left, each.read) for each in pairs):
        return Between()
    largest = max((float(each.read.abs().max()) for each in pairs if each.read.numel()), default=0.0)
    changed = ""
    for bound in (math.inf, largest):
        between = Between(_factor(pairs, bound), bound)
        changed = next((each.name for each in pairs if not _explains(between, each)), "")
        if not changed:
            return between
    raise UnderivableError(
        f"the gradient of {changed} was changed before the step, by more than one factor and one bound for all"
    )


def _factor(pairs: Sequence[Pair], bound: float) -> float:
    """Solves for the factor, by the elements within the bound; without any, the least that takes all beyond it."""
    above = below = 0.0
    for each in pairs:
        if math.isinf(bound):
            above += float((each.left * each.read).sum())
            below += float(each.left.square().sum())
            continue
        within = each.read.abs() < bound
        above += float((each.left * each.read)[within].sum())
        below += float(each.left[within].square().sum())
    if below:
        return above / below
    smallest = min((float(t.min()) for each in pairs if (t := each.left.abs()[each.left != 0]).numel()), default=0.0)
    return max(1.0, bound / smallest) if smallest and math.isfinite(bound) else 1.0


def _explains(between: Between, pair: Pair) -> bool:
    own = between.of(pair.left)
    accepted = 8 * unit(pair.dtype) * own.abs() + float(torch.finfo(pair.dtype).tiny)
    return excess(pair.read - own, accepted) <= 1
