"""Undeclared training by programs that say they have hardly begun: nothing in memory yet, or still loading weights.

A snapshot of such a program verifies nothing and accuses no party, so a Prover wants all of its snapshots to be of that
kind. What it may have done by then is limited in FLOPs, in kernels, and in their time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import torch
from redteam.on_chips import HIDDEN_RUN
from redteam.row import Outcome, Row
from redteam.workshop import Workshop, accusations
from support.training_on_chip import STEPS, TrainingOnChip
from torch import Tensor

from firmware_sim import Shim
from verifier.model.policies import SNAPSHOTS_AS_DESIGNED

Train = Callable[[int], float]
"""Trains with a seed and keeps nothing on the chip; returns the share of the loss that is gone."""


def regression(width: int, steps: int, seed: int) -> float:
    """Fits a linear map by plain gradients."""
    draws = torch.Generator().manual_seed(seed)
    x, wanted = (torch.randn(width, width, generator=draws) for _ in range(2))
    weights = torch.zeros(width, width)
    y, rate = x @ wanted, 1 / float(torch.linalg.matrix_norm(x, 2) ** 2)

    def loss(weights: Tensor) -> float:
        return float((x @ weights - y).square().mean())

    before = loss(weights)
    for _ in range(steps):
        weights -= rate * (x.T @ (x @ weights - y))
    return 1 - loss(weights) / before


KINDS: tuple[tuple[str, Train], ...] = (
    ("in few kernels of many FLOPs", partial(regression, 512, 12)),
    ("in many kernels of few FLOPs", partial(regression, 4, SNAPSHOTS_AS_DESIGNED.setup_kernels // 4)),
)
"""Each is beyond one of the limits and far within the others."""


def emptied(train: Train, shop: Workshop, seed: int) -> Outcome:
    """Trains, takes everything off the chip once an interrupt is raised, and goes away as if it had only begun."""
    runs, name = shop.place(), shop.name()
    process = shop.bench.chip(name)
    with Shim.connect(process.socket) as chip:
        trained = train(seed)
        gc.collect()
        chip.request_snapshot()
    report = shop.report(name, runs=runs)
    held = sum(each["bytes"] for each in report["chips"][0]["snapshots"])
    return Outcome(findings=accusations(report), gain=trained if not held else 0.0, cost=1.0)


def loading(train: Train, shop: Workshop, seed: int) -> Outcome:
    """Trains before a recorded run that begins from given weights, and says that it was loading these."""
    runs, name = shop.place(), shop.name()
    process, trained = shop.bench.chip(name, hold=0), 0.0

    def before() -> None:
        nonlocal trained
        trained = train(seed)
        chip.request_snapshot()

    with Shim.connect(process.socket) as chip, TrainingOnChip(runs / "run", chip, seed=seed) as run:
        run.begin_with(0.5, before=before)
        for _ in range(STEPS):
            run.step()
    return Outcome(findings=accusations(shop.report(name, runs=runs)), gain=trained, cost=1.0)


BY_EXCUSE = "attacks on what a beginning excuses"

ROWS = tuple(
    Row(
        name=f"{what}, {words}",
        source=BY_EXCUSE,
        wants=HIDDEN_RUN,
        gains="the share of the loss of the undeclared training that is gone",
        attack=partial(attack, train),
        expected=expected,
        note="A program that has done no more than it takes to begin is excused. The limits are on FLOPs, on kernels "
        "and on their time; a chip with an excused snapshot does not count as verified.",
    )
    for what, attack, expected in (
        ("memory that is emptied before each snapshot", emptied, ("snapshot.unexplained",)),
        ("a training that is said to be the loading of weights", loading, ("snapshot.memory.unexplained",)),
    )
    for words, train in KINDS
)
