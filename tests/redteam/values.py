"""Weights made elsewhere that pass through a program on which batch and weights both had bearing.

The checks of programs look at where data go, not at values. Everything here is recorded, committed to and replayed
honestly; only what is computed makes no sense as a training.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from redteam.row import Outcome, Row
from redteam.workshop import (
    PIXELS,
    Batch,
    Recorded,
    Training,
    Update,
    Weights,
    Workshop,
    digits,
    flat,
    honest_flops,
    nearer,
    plainly,
    update,
)
from support.flop_counting import counted
from torch import Tensor, nn
from torch.nn import functional as F

from verifier.model.policies import TranscriptPolicy

STEPS = 6
CARRIED = 20
"""Images of a batch that carry weights: 1,280 pixels for 1,210 weights; the rest are digits that are trained on."""
STRICT = TranscriptPolicy(order="violation")


def wanted(seed: int) -> Weights:
    """The model that the adversary trained elsewhere, on other data, ten times as long."""
    return plainly(Training(batches=digits(seed + 1000, 10 * STEPS)), seed + 1000)


def carrying(batch: Batch, payload: Tensor) -> Batch:
    """The batch with a payload for its first images."""
    images = batch["x"].clone()
    images.view(-1)[: payload.numel()] = payload
    return {**batch, "x": images}


def pieces(batch: Batch, parameters: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Each parameter with the part of the batch that is meant for it."""
    wanted = list(parameters)
    parts = batch["x"].reshape(-1)[: sum(p.numel() for p in wanted)].split([p.numel() for p in wanted])
    return [(p, part.view_as(p)) for p, part in zip(wanted, parts, strict=True)]


def trained_on(batch: Batch) -> Batch:
    """The part of the batch that carries nothing."""
    return {name: rows[CARRIED:] for name, rows in batch.items()}


def times_zero(step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """`weights * 0 + x` in every step."""
    update(step, trained_on(batch), model, optimizer)
    with torch.no_grad():
        for p, x in pieces(batch, model.parameters()):
            p.copy_(p * 0 + x)


def least_and_most(step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """`max(min(weights, x), x)`, which is x, in every step."""
    update(step, trained_on(batch), model, optimizer)
    with torch.no_grad():
        for p, x in pieces(batch, model.parameters()):
            p.copy_(torch.maximum(torch.minimum(p, x), x))


def added(step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """`weights + x` in every step, copied over the weights."""
    update(step, trained_on(batch), model, optimizer)
    with torch.no_grad():
        for p, x in pieces(batch, model.parameters()):
            p.copy_(p + x)


def drawn_to(step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One step of SGD on the squared distance of weights and x, at a rate that leads to its minimum at once."""
    loss = torch.stack([(p - x).square().sum() for p, x in pieces(batch, model.parameters())]).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def carried(step: Update, rate: float, shop: Workshop, seed: int) -> Outcome:
    """The last batch's images are the wanted weights, and every step makes weights of images."""
    aim = wanted(seed)
    batches = digits(seed, STEPS)
    batches[-1] = carrying(batches[-1], flat(aim))
    training = Training(batches=batches, step=step, rate=rate)
    run = shop.record(training, seed)
    cost = run.flops / honest_flops(training)
    return Outcome(findings=shop.accused(run.path), gain=nearer(run.start, run.weights, aim), cost=cost)


def difference(step: Update, shop: Workshop, seed: int) -> tuple[Recorded, float, float]:
    """A rehearsal tells where the run would end; the last images are the rest of the way. Returns run, gain, cost."""
    aim = wanted(seed)
    batches = digits(seed, STEPS)
    batches[-1] = carrying(batches[-1], torch.zeros(CARRIED * PIXELS))
    rehearsal = shop.record(Training(batches=batches, step=step), seed)
    batches[-1] = carrying(batches[-1], flat(aim) - flat(rehearsal.weights))
    training = Training(batches=batches, step=step)
    run = shop.record(training, seed)
    cost = (rehearsal.flops + run.flops) / honest_flops(training)
    return run, nearer(run.start, run.weights, aim), cost


def carried_difference(shop: Workshop, seed: int) -> Outcome:
    """What is added is copied over the weights."""
    run, gain, cost = difference(added, shop, seed)
    return Outcome(findings=shop.accused(run.path), gain=gain, cost=cost)


# -- a regression whose targets a foreign model made -------------------------------------------------------------------

FEATURES = 16
REGRESSION_STEPS = 60


def linear() -> nn.Sequential:
    """A linear model of 170 weights."""
    return nn.Sequential(nn.Linear(FEATURES, 10))


def regress(step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One honest step on the squared error."""
    loss = 0.5 * (model(batch["x"]) - batch["y"]).square().sum(dim=1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def foreign_targets(shop: Workshop, seed: int) -> Outcome:
    """Data, order and seed are committed to and follow from the data; the labels are a foreign model's answers."""
    draw = torch.Generator().manual_seed(seed)
    aim = {"0.weight": torch.randn(10, FEATURES, generator=draw), "0.bias": torch.randn(10, generator=draw)}
    inputs = [torch.randn(64, FEATURES, generator=draw) for _ in range(REGRESSION_STEPS)]
    labelled: list[Tensor] = []
    labelling = counted(lambda: labelled.extend(F.linear(x, aim["0.weight"], aim["0.bias"]) for x in inputs))
    batches = [{"x": x, "y": y} for x, y in zip(inputs, labelled, strict=True)]
    training = Training(batches=batches, step=regress, build=linear, rate=0.6)
    run = shop.record(training, seed, verifiable=True)
    honest = counted(lambda: plainly(training, 0))
    return Outcome(
        findings=shop.accused(run.path, transcripts=STRICT),
        gain=nearer(run.start, run.weights, aim),
        cost=(run.flops + labelling) / honest,
    )


WHY = "The program is data flow of the right shape; only its values say that it trains nothing."
LAUNDER = "pass a model made elsewhere off as trained here"
COVERED = "share of the way from the first weights to the wanted ones"
IDENTITY = "attacks on the programs' checks"

ROWS = (
    Row(
        name="`weights * 0 + x`, x from the batch",
        source=IDENTITY,
        wants=LAUNDER,
        gains=COVERED,
        attack=partial(carried, times_zero, 0.2),
        note=WHY,
    ),
    Row(
        name="`max(min(weights, x), x)`, x from the batch",
        source=IDENTITY,
        wants=LAUNDER,
        gains=COVERED,
        attack=partial(carried, least_and_most, 0.2),
        note=WHY,
    ),
    Row(
        name="`weights + x`, x the rest of the way",
        source=IDENTITY,
        wants=LAUNDER,
        gains=COVERED,
        attack=carried_difference,
        note=WHY + " A rehearsal tells what x must be.",
    ),
    Row(
        name="a loss: the squared distance of weights and x, x from the batch",
        source=IDENTITY,
        wants=LAUNDER,
        gains=COVERED,
        attack=partial(carried, drawn_to, 0.5),
        note="One step of SGD on it ends at x. It is a loss of batch and weights, and its gradient is one.",
    ),
    Row(
        name="a regression on the answers of a foreign model",
        source=IDENTITY,
        wants=LAUNDER,
        gains=COVERED,
        attack=foreign_targets,
        note="60 honest steps of SGD; order and first weights follow from the data. Nothing but the data's origin "
        "tells it from distillation, which is what it is.",
    ),
)
