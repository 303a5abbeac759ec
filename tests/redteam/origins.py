"""Attacks on where a run's weights, data and work come from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from redteam.on_chips import cheat
from redteam.row import Outcome, Row
from redteam.workshop import (
    Batch,
    Training,
    Weights,
    Workshop,
    classifier,
    digits,
    distance,
    honest_flops,
    nearer,
    plainly,
    update,
    weights_of,
)
from torch import nn

from verifier.model.policies import NO_SEGMENTS
from weighbridge.core.host_memory import octets

STEPS = 6


def claimed_initial(shop: Workshop, seed: int) -> Outcome:
    """The wanted model is said to be what a run began with."""
    aim = plainly(Training(batches=digits(seed + 1000, 10 * STEPS)), seed + 1000)
    run = shop.record(Training(batches=digits(seed, 1)), seed, begin=aim)
    honest = honest_flops(Training(batches=digits(seed, 10 * STEPS)))
    fresh = weights_of(classifier())
    return Outcome(findings=shop.accused(run.path), gain=nearer(fresh, run.weights, aim), cost=run.flops / honest)


def cut_in_two(shop: Workshop, seed: int) -> Outcome:
    """A long run is declared as two: the second says nothing of the first."""
    first = shop.record(Training(batches=digits(seed, STEPS)), seed, checkpoint_every=STEPS)
    second = shop.record(Training(batches=digits(seed + 1, STEPS)), seed + 1, begin=first.weights, beside=first.path)
    chips = (shop.bench.at_end(first.path), shop.bench.at_end(second.path))
    cost = (first.flops + second.flops) / honest_flops(Training(batches=digits(seed, 2 * STEPS)))
    kept = float(distance(first.weights, second.start) == 0)
    return Outcome(findings=shop.accused(second.path, *chips), gain=kept, cost=cost)


def subtracted(shop: Workshop, seed: int) -> Outcome:
    """Of the data that the run declares, it is trained on the first batch only."""
    batches = digits(seed, STEPS)
    training = Training(batches=batches)
    run = shop.record(training, seed, substitute=lambda _: batches[0])
    cost = run.flops / honest_flops(training)
    return Outcome(findings=shop.accused(run.path, replays=False), gain=1 - 1 / STEPS, cost=cost)


class Glue:
    """At the end of one step, the host puts another run's weights in place; no operation tells."""

    def __init__(self, at: int, weights: Weights) -> None:
        self._at, self._weights = at, {name: t.numpy().tobytes() for name, t in weights.items()}

    def __call__(self, step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        update(step, batch, model, optimizer)
        if step == self._at:
            for name, p in model.named_parameters():
                np.frombuffer(octets(p), dtype=np.uint8)[...] = np.frombuffer(self._weights[name], dtype=np.uint8)


def glued(plan: Mapping[str, Any], shop: Workshop, seed: int) -> Outcome:
    """After two honest steps come the last ones of another run; there is a checkpoint between every two steps."""
    aim = plainly(Training(batches=digits(seed + 1000, 10 * STEPS)), seed + 1000)
    training = Training(batches=digits(seed, STEPS), step=Glue(2, aim))
    run = shop.record(training, seed, checkpoint_every=1, verify_state=False)
    path, chip = shop.in_the_middle(run.path)
    cost = run.flops / honest_flops(Training(batches=digits(seed, 10 * STEPS)))
    return Outcome(findings=shop.accused(path, chip, **plan), gain=nearer(run.start, run.weights, aim), cost=cost)


def padded(step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """An honest step, and products that nothing comes of."""
    update(step, batch, model, optimizer)
    with torch.no_grad():
        nothing = torch.zeros(256, 256)
        for _ in range(4):
            nothing = nothing @ nothing


def inflated(shop: Workshop, seed: int) -> Outcome:
    """The transcript has products of zeros, which need no computing; in their time the chip does hidden work.

    The chip's counter says as many FLOPs as the transcript, and its memory is what the transcript says.
    """
    run = shop.record(Training(batches=digits(seed, STEPS), step=padded), seed)
    honest = honest_flops(Training(batches=digits(seed, STEPS)))
    return Outcome(findings=shop.accused(run.path), gain=1 - honest / run.flops, cost=1.0)


LAUNDER = "pass a model made elsewhere off as trained here"
COVERED = "share of the way from random weights to the wanted ones"
NOBODY = (
    "Only a plan that switches the default off misses it (`--random-segments 0 --largest-segments 0`). Then a replay "
    "goes from the checkpoint before a snapshot to the snapshot."
)

ROWS = (
    Row(
        name="another run's end glued on, where no segment is replayed whole",
        source=f"Choi et al. 2023; {cheat(11)}",
        wants=LAUNDER,
        gains=COVERED,
        attack=partial(glued, {"segments": NO_SEGMENTS}),
        note=NOBODY,
    ),
    Row(
        name="products that need no computing, and hidden work in their time",
        source="Baker et al. 2025: inflated compute",
        wants="do undeclared work on a chip that a declared run explains",
        gains="the hidden share of the chip's FLOPs",
        attack=inflated,
        note="The chip is written by hand here: its counter agrees with the transcript, and hidden work is off the "
        "chip at snapshots. Operations that nothing comes of are on the tape for every reader to see; no check asks "
        "for them.",
    ),
    Row(
        name="another run's end glued on",
        source=f"Choi et al. 2023; {cheat(11)}",
        wants=LAUNDER,
        gains=COVERED,
        attack=partial(glued, {}),
        expected=("replay.mismatch",),
        note="The segment in which the weights changed most is replayed whole, as it is by default.",
    ),
    Row(
        name="a trained model that is said to be initial weights",
        source=cheat(8),
        wants=LAUNDER,
        gains=COVERED,
        attack=claimed_initial,
        expected=("transcript.origin.undeclared",),
    ),
    Row(
        name="a long run declared as two short ones",
        source=cheat(9),
        wants="stay below a threshold",
        gains="1 if the second begins with what the first had trained",
        attack=cut_in_two,
        expected=("transcript.run.split",),
        note="Both halves ran on chips that were drawn; else it is `transcript.origin.undeclared`.",
    ),
    Row(
        name="trained on a part of the declared data",
        source=f"Choi et al. 2023: subtraction; {cheat(10)}",
        wants="train on other data than declared",
        gains="the share of the declared data that was left out",
        attack=subtracted,
        expected=("replay.mismatch",),
    ),
)
