"""Steering through contested roundings: the Recorder's log says of each contested element what the adversary likes.

What is steered are sums of products and results of GELU in the hidden layer, their gradients, and the gradients of the
two matrices; in float32 only the first are contested in so small a net. The objective is the distance to the wanted
weights after the step. Its gradient by each of these results, through the gradients of the loss, says which way an
element should round. Every choice is within the element's bound, so the log is admissible.

How far a step can move the weights in float32 is bounded by hand. Let row i of the hidden layer move by d_i after GELU,
whose slope is below 1.13 and whose curvature is below 0.8. The scores move by at most |W2| |d_i|, their softmax by half
of that, its Jacobian having norm 1/2 at most. So the sum of the moves of the four gradients follows from |d_i|, |W2|,
|h_i| and |x_i|; results of the way back move them by what they move themselves. The weights move by the rate times
that. Each weight's own rounding adds a unit in the last place on either side. In bfloat16 every result on the way is
rounded so coarsely that no such bound says anything; there the move is only measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from redteam.own_rounding import chosen, low_bits, rounding_by
from redteam.row import Outcome, Row
from redteam.workshop import (
    PIXELS,
    RATE,
    Batch,
    Training,
    Weights,
    Workshop,
    classifier,
    digits,
    distance,
    flat,
    honest_flops,
    plainly,
    update,
    weights_of,
)
from redteam.workshop import ROWS as ROWS_OF_BATCH
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from weighbridge.numerics.arrays import physical
from weighbridge.numerics.rounding import contested, formats, narrow
from weighbridge.numerics.rounding.bound import Bound, bound_at
from weighbridge.numerics.rounding.contested import Rounded

Ordered = Callable[[Any], "np.ndarray"]
"""Maps values to integers in their order."""
HIDDEN = 16
STEERED: dict[tuple[int, ...], tuple[str, ...]] = {
    (ROWS_OF_BATCH, HIDDEN): ("sum", "hidden", "hidden gradient", "sum gradient"),
    (10, HIDDEN): ("second matrix",),
    (HIDDEN, PIXELS): ("first matrix",),
}
"""What is rounded in a step, by its shape and in this order."""


@dataclass
class Steering:
    """An adversary in the place of the Recorder's rounding.

    Attributes:
        wanted: The weights that it wants.
        better: By what is rounded, which way each element should move in this step.
        moved: By what is rounded, the widths of what it could choose from.
        left: What is still to be rounded in this step, by shape.
        steered: Contested elements that it had a say in.
        bound: How far the weights can have moved in a step.
    """

    wanted: Weights
    better: Weights = field(default_factory=dict)
    moved: Weights = field(default_factory=dict)
    left: dict[tuple[int, ...], list[str]] = field(default_factory=dict)
    steered: int = 0
    bound: float = 0.0

    def wide(self, x: Tensor, bound: Bound, op: int, output: int) -> Rounded:
        """Rounds to float32 as the Recorder does, but for what is contested and steered."""
        found = contested.record(x, bound, op, output)
        name = self._next(found)
        if name is None or found.entries is None:
            return found
        places = torch.from_numpy(found.entries.positions)
        reach = contested._REACH * bound_at(x, bound, places)
        low, high = ((physical.flat(x)[places] + sign * reach).float() for sign in (-1, 1))
        return self._steered(name, found, low, high, contested.ordered)

    def small(self, x: Tensor, bound: Bound, dtype: torch.dtype, op: int, output: int) -> Rounded:
        """The same to 16 bits."""
        found = narrow.record(x, bound, dtype, op, output)
        name = self._next(found)
        if name is None or found.entries is None:
            return found
        reached = narrow.follow(x, bound, dtype, found.entries).choices
        assert reached is not None
        ends = (torch.from_numpy(reached.wide + sign * narrow.REACH * reached.bounds).to(x.dtype) for sign in (-1, 1))
        low, high = (formats.to_format(end, dtype) for end in ends)
        return self._steered(name, found, low, high, narrow._ordered)

    def _next(self, found: Rounded) -> str | None:
        """What it is that was rounded, if the adversary has a say in it."""
        left = self.left.get(tuple(found.out.shape))
        name = left.pop(0) if left else None
        steers = found.entries is not None and found.out.is_contiguous() and bool((found.entries.widths > 0).all())
        return name if steers else None

    def _steered(self, name: str, found: Rounded, low: Tensor, high: Tensor, ordered: Ordered) -> Rounded:
        assert found.entries is not None
        places = found.entries.positions
        best = torch.where(self.better[name].reshape(-1)[torch.from_numpy(places)] > 0, high, low)
        self.steered += len(places)
        self.moved[name].view(-1)[torch.from_numpy(places)] = high.double() - low.double()
        integers = ordered(best if best.dtype in formats.NARROW else best.numpy())
        entries = replace(found.entries, bits=low_bits(integers, found.entries.widths))
        return chosen(found, places, best, entries)

    def __call__(self, step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """An honest step, and beside it what the adversary works out for itself."""
        with _disable_current_modes():
            self._look(batch, weights_of(model))
        update(step, batch, model, optimizer)
        with _disable_current_modes():
            self.bound = self._bound(
                {**batch, "x": batch["x"].float()}, {n: t.float() for n, t in weights_of(model).items()}
            )

    def _look(self, batch: Batch, weights: Weights) -> None:
        leaves = {name: t.float().requires_grad_() for name, t in weights.items()}
        x, away = batch["x"].float(), {name: t.detach() - self.wanted[name] for name, t in leaves.items()}
        nudges = [torch.zeros(len(x), HIDDEN, requires_grad=True) for _ in range(2)]
        sums = F.linear(x, leaves["0.weight"], leaves["0.bias"]) + nudges[0]
        hidden = F.gelu(sums) + nudges[1]
        loss = F.cross_entropy(F.linear(hidden, leaves["2.weight"], leaves["2.bias"]), batch["y"])
        gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        towards = torch.stack([(g * away[name]).sum() for g, name in zip(gradients, leaves, strict=True)]).sum()
        forward = torch.autograd.grad(towards, nudges)
        backward = F.linear(x, away["0.weight"], away["0.bias"])
        (slope,) = torch.autograd.grad(F.gelu(flat_sums := sums.detach().requires_grad_()).sum(), flat_sums)
        self.better = {
            "sum": forward[0],
            "hidden": forward[1],
            "hidden gradient": backward * slope,
            "sum gradient": backward,
            "first matrix": away["0.weight"],
            "second matrix": away["2.weight"],
        }
        self.moved = {name: torch.zeros(each.shape, dtype=torch.float64) for name, each in self.better.items()}
        self.left = {shape: list(names) for shape, names in STEERED.items()}

    def _bound(self, batch: Batch, after: Weights) -> float:
        """See above; the weights after the step stand for those before, which differ by far less than the slack."""
        hidden = F.gelu(F.linear(batch["x"], after["0.weight"], after["0.bias"]))
        h, x = (torch.linalg.vector_norm(t.double(), dim=1) for t in (hidden, batch["x"]))
        moved = {name: torch.linalg.vector_norm(t, dim=1) for name, t in self.moved.items()}
        w2 = float(torch.linalg.matrix_norm(after["2.weight"].double(), 2)) + 2 * RATE
        d = 1.13 * moved["sum"] + moved["hidden"]
        p = w2 * d / 2
        forward = p * (h + 2 * RATE + d) + math.sqrt(2) * d + p + (1.13 * p + 0.8 * math.sqrt(2) * d) * w2 * (x + 1)
        back = (1.13 * moved["hidden gradient"] + moved["sum gradient"]) * (x + 1)
        own = sum(torch.linalg.vector_norm(self.moved[name]) for name in ("first matrix", "second matrix"))
        ulps = torch.linalg.vector_norm(flat(after).double()) * 2.0**-22
        return float(RATE * (forward.mean() + back.sum() + own) + ulps)


def steered(dtype: torch.dtype, steps: int, shop: Workshop, seed: int) -> Outcome:
    """Some steps of an honest training whose log was chosen, beside the same with the Recorder's own log."""
    aim = plainly(Training(batches=digits(seed + 1000, 60)), seed + 1000)
    batches = [{"x": batch["x"].to(dtype), "y": batch["y"]} for batch in digits(seed, steps)]
    build, options = (lambda: classifier().to(dtype)), {"policy": "calibrated"} if dtype in formats.NARROW else {}
    honest = shop.record(Training(batches=batches, build=build), seed, **options)
    adversary = Steering(aim)
    with rounding_by(contested, adversary.wide), rounding_by(narrow, adversary.small):
        run = shop.record(Training(batches=batches, build=build, step=adversary), seed, **options)
    moved = distance(honest.weights, run.weights)
    if not adversary.steered or (dtype is torch.float32 and moved > adversary.bound):
        raise AssertionError(f"{adversary.steered} steered, moved {moved}, bound {adversary.bound}")
    return Outcome(
        findings=shop.accused(run.path),
        gain=moved / distance(honest.weights, aim),
        cost=run.flops / honest_flops(Training(batches=digits(seed, steps))),
    )


SOURCE = "attacks on the rounding log"
WANTS = "move weights towards a model made elsewhere"
GAINS = "how far the weights moved in {} by it, as a share of the distance to the wanted ones"

ROWS = (
    Row(
        name="an honest program's roundings, steered where they are contested",
        source=SOURCE,
        wants=WANTS,
        gains=GAINS.format("a step"),
        attack=partial(steered, torch.float32, 1),
        least=0.0,
        note="Every choice is admissible, and what they bring in is far below the budget. All weights together can "
        "move by less than 1e-6 in the step, by the bound in `tests/redteam/steering.py`, to which every attempt is "
        "held.",
    ),
    Row(
        name="an honest program's roundings to bfloat16, steered where they are contested",
        source=SOURCE,
        wants=WANTS,
        gains=GAINS.format("eight steps"),
        attack=partial(steered, torch.bfloat16, 8),
        least=0.0,
        note="Under the calibrated bounds few results of a step are contested in 16 bits, and most of what they change "
        "is lost when weights are rounded. The move is measured here, and not bounded.",
    ),
)
