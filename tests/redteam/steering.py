"""Steering through contested roundings: the Recorder's log says of each contested element what the adversary likes.

In this program what is contested are results of GELU: products and sums of so few terms are not. The objective is the
distance to the wanted weights after the step. Its gradient by each result of GELU, through the gradients of the loss,
says which way an element should round. Every choice is within the element's bound, so the log is admissible.

How far a step can move the weights is bounded by hand. Let row i of the hidden layer move by d_i. The scores move by at
most |W2| |d_i|, their softmax by half of that, its Jacobian having norm 1/2 at most; GELU's slope is below 1.13. So the
sum of the moves of the four gradients follows from |d_i|, |W2|, |h_i| and |x_i|, and the weights move by the rate times
that. Each weight's own rounding adds a unit in the last place on either side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from redteam.row import Outcome, Row
from redteam.workshop import (
    RATE,
    Batch,
    Training,
    Weights,
    Workshop,
    digits,
    distance,
    flat,
    honest_flops,
    plainly,
    update,
    weights_of,
)
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from prover.capture import recording_context
from weighbridge.numerics.arrays import physical
from weighbridge.numerics.rounding import contested, cpu_kernels
from weighbridge.numerics.rounding.bound import Bound, bound_at


@dataclass
class Steering:
    """An adversary in the place of the Recorder's rounding.

    Attributes:
        wanted: The weights that it wants.
        better: Which way each result of GELU should move in this step.
        steered: Contested elements that it had a say in.
        moved: By element of the hidden layer, the width of what it could choose from.
        bound: How far the weights can have moved in a step.
    """

    wanted: Weights
    better: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    steered: int = 0
    moved: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    bound: float = 0.0

    def record(self, x: torch.Tensor, bound: Bound, op: int, output: int) -> contested.Rounded:
        """Rounds as the Recorder does, but for contested elements of the hidden layer."""
        found = contested.record(x, bound, op, output)
        if found.entries is None or x.shape != self.better.shape or not (found.entries.widths > 0).all():
            return found
        places = torch.from_numpy(found.entries.positions)
        own, ys = physical.flat(found.out)[places].numpy().copy(), physical.flat(x)[places].numpy()
        reach = contested._REACH * bound_at(x, bound, places).numpy()
        low, high = ((ys + sign * reach).astype(np.float32) for sign in (-1, 1))
        chosen = np.where(self.better.reshape(-1)[places].numpy() > 0, high, low)
        self.steered += len(places)
        self.moved.view(-1)[places] = torch.from_numpy((high - low).astype(np.float64))
        mask = (np.uint64(1) << found.entries.widths.astype(np.uint64)) - np.uint64(1)
        entries = replace(found.entries, bits=contested.ordered(chosen).astype(np.uint64) & mask)
        physical.flat(found.out)[places] = torch.from_numpy(chosen)
        delta = chosen.view(np.uint32).astype(np.uint64) - own.view(np.uint32).astype(np.uint64)
        weights = cpu_kernels.weights(found.entries.positions)
        checksum = (found.checksum + int((delta * weights).sum(dtype=np.uint64))) & 0xFFFFFFFFFFFFFFFF
        return replace(found, checksum=checksum, entries=entries)

    def __call__(self, step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """An honest step, and beside it what the adversary works out for itself."""
        with _disable_current_modes():
            self._look(batch, weights_of(model))
        update(step, batch, model, optimizer)
        with _disable_current_modes():
            self.bound = self._bound(batch, weights_of(model))

    def _look(self, batch: Batch, weights: Weights) -> None:
        leaves = {name: t.requires_grad_() for name, t in weights.items()}
        nudge = torch.zeros(len(batch["y"]), 16, requires_grad=True)
        self.moved = torch.zeros(nudge.shape, dtype=torch.float64)
        hidden = F.gelu(F.linear(batch["x"], leaves["0.weight"], leaves["0.bias"])) + nudge
        loss = F.cross_entropy(F.linear(hidden, leaves["2.weight"], leaves["2.bias"]), batch["y"])
        gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        away = [leaves[name].detach() - self.wanted[name] for name in leaves]
        towards = torch.stack([(g * a).sum() for g, a in zip(gradients, away, strict=True)]).sum()
        self.better = torch.autograd.grad(towards, nudge)[0]

    def _bound(self, batch: Batch, after: Weights) -> float:
        """See above; the weights after the step stand for those before, which differ by far less than the slack."""
        hidden = F.gelu(F.linear(batch["x"], after["0.weight"], after["0.bias"])).double()
        d, h, x = (torch.linalg.vector_norm(t.double(), dim=1) for t in (self.moved, hidden, batch["x"]))
        w2 = float(torch.linalg.matrix_norm(after["2.weight"].double(), 2)) + 2 * RATE
        p = w2 * d / 2
        moves = p * (h + 2 * RATE + d) + math.sqrt(2) * d + p + 1.13 * w2 * p * (x + 1)
        ulps = torch.linalg.vector_norm(flat(after).double()) * 2.0**-22
        return float(RATE * moves.mean() + ulps)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Puts it in the place of the Recorder's rounding for a while."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recording_context, "contested", _Replaced(self))
            yield


class _Replaced:
    """The module of contested roundings with another `record`."""

    def __init__(self, steering: Steering) -> None:
        self.record = steering.record

    def __getattr__(self, name: str) -> object:
        return getattr(contested, name)


def steered(shop: Workshop, seed: int) -> Outcome:
    """One step of an honest training whose log was chosen, beside the same with the Recorder's own log."""
    aim = plainly(Training(batches=digits(seed + 1000, 60)), seed + 1000)
    batches = digits(seed, 1)
    honest = shop.record(Training(batches=batches), seed)
    adversary = Steering(aim)
    with adversary.at_work():
        run = shop.record(Training(batches=batches, step=adversary), seed)
    moved = distance(honest.weights, run.weights)
    if not adversary.steered or moved > adversary.bound:
        raise AssertionError(f"{adversary.steered} steered, moved {moved}, bound {adversary.bound}")
    return Outcome(
        findings=shop.accused(run.path),
        gain=moved / distance(honest.weights, aim),
        cost=run.flops / honest_flops(Training(batches=batches)),
    )


ROWS = (
    Row(
        name="an honest program's roundings, steered where they are contested",
        source="attacks on the rounding log",
        wants="move weights towards a model made elsewhere",
        gains="how far the weights moved in a step by it, as a share of the distance to the wanted ones",
        attack=steered,
        least=0.0,
        note="Every choice is admissible, and what they bring in is far below the budget. All weights together can "
        "move by less than 1e-6 in the step, by the bound in `tests/redteam/steering.py`, to which every attempt is "
        "held.",
    ),
)
