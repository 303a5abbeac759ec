"""Published attacks on proof-of-learning, before the tolerance verifier that they beat and before ours.

The adversary has a model that was trained elsewhere and wants a history for it: checkpoints from plausible first
weights to that model, and data from which each seems to follow. Before the tolerance verifier this is a proof; before
ours it is a transcript with a checkpoint after every step, whose records name these states, under a data commitment,
with a chip that shows what the transcript says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from redteam.row import Outcome, Row
from redteam.workshop import (
    PIXELS,
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
)
from support.flop_counting import counted
from torch import nn
from torch.nn import functional as F

from benchmarks.baselines import proof_of_learning
from benchmarks.baselines.proof_of_learning import Proof, Verifier
from verifier.model.policies import NO_SEGMENTS
from weighbridge.core.host_memory import octets

SEGMENTS, LONG = 20, 5
"""Segments of a proof, and steps in each."""
EPOCH, TOP = 10, 3
"""Segments in an epoch, and how many of them are executed again."""
RATE = 0.2
SPREAD = {"0.weight": PIXELS**-0.5, "0.bias": PIXELS**-0.5, "2.weight": 0.25, "2.bias": 0.25}
"""Half widths of the uniform distributions that `nn.Linear` draws from: one over the root of its inputs."""
WITHIN = 0.1
"""The tolerance, as a share of the distance between two honest trainings that differ in their seed."""


def trained(weights: Weights, batches: Sequence[Batch], rate: float) -> Weights:
    """Executes a segment."""
    model = classifier()
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for batch in batches:
        loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss of every step."""
    return F.cross_entropy(model(batch["x"]), batch["y"])


@lru_cache(maxsize=1)
def verifier() -> Verifier:
    """The verifier, with tolerances from two honest trainings of other seeds, as its authors calibrate them."""
    length = SEGMENTS * LONG
    ends = [plainly(Training(batches=digits(seed, length), rate=RATE), seed) for seed in (901, 902)]
    apart = proof_of_learning.distances(*ends)
    tolerance = {name: WITHIN * far for name, far in apart.items()}
    return Verifier(execute=trained, spread=SPREAD, tolerance=tolerance, epoch=EPOCH, top=TOP)


def segments(seed: int) -> list[list[Batch]]:
    """Genuine data for a whole proof."""
    batches = digits(seed, SEGMENTS * LONG)
    return [batches[at : at + LONG] for at in range(0, len(batches), LONG)]


def honest_proof(seed: int) -> Proof:
    """What an honest prover hands over."""
    data = segments(seed)
    states = [start(seed)]
    for segment in data:
        states.append(trained(states[-1], segment, RATE))
    return Proof.of(states, data, RATE)


def start(seed: int) -> Weights:
    """First weights that look like what they are: about one draw in twenty-five does not, and is drawn again."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        while True:
            weights = {name: p.detach().clone() for name, p in classifier().named_parameters()}
            if verifier().begins(Proof.of([weights], [], RATE)):
                return weights


def wanted(seed: int) -> Weights:
    """The model trained elsewhere: other seed, other data, the same length."""
    return plainly(Training(batches=digits(seed + 500, SEGMENTS * LONG), rate=RATE), seed + 500)


def between(first: Weights, last: Weights, count: int) -> list[Weights]:
    """`count` + 1 models on the line from one to the other."""
    parts = [i / count for i in range(count + 1)]
    return [{name: torch.lerp(first[name], last[name], part) for name in first} for part in parts]


@dataclass(frozen=True, kw_only=True)
class Spoof:
    """A history made up for a model.

    Attributes:
        states: Weights before the first segment and after each.
        segments: The data of each.
        rate: The learning rate that is named.
        flops: What it cost to make up.
    """

    states: list[Weights]
    segments: list[list[Batch]]
    rate: float
    flops: int = 0

    def proof(self) -> Proof:
        """As one shows it to the tolerance verifier."""
        return Proof.of(self.states, self.segments, self.rate)


Maker = Callable[[Weights, Weights, int], Spoof]
"""Makes a history up: from first weights, to wanted ones, with a seed."""


def infinitesimal(first: Weights, last: Weights, seed: int) -> Spoof:
    """Models on a line, genuine data, and a learning rate at which nothing moves: each is close to the next anyway."""
    return Spoof(states=between(first, last, SEGMENTS), segments=segments(seed), rate=1e-9)


def blindfold(first: Weights, last: Weights, seed: int) -> Spoof:
    """The largest moves of an epoch are genuine, and only they are looked at; the others go to the wanted model.

    Nobody checks the learning rate, so genuine moves may be large.
    """
    data, states, work, rate = segments(seed), [first], 0, 5 * RATE
    for place, segment in enumerate(data):
        if place % EPOCH < TOP:
            work += counted(lambda segment=segment: states.append(trained(states[-1], segment, rate)))  # type: ignore[misc]
            continue
        own = states[place - place % EPOCH : place + 1]
        genuine = min(distance(a, b) for a, b in pairwise(own[: TOP + 1]))
        left = distance(states[-1], last)
        states.append(last if left < genuine else _towards(states[-1], last, genuine / left))
    return Spoof(states=states, segments=data, rate=rate, flops=work)


def _towards(here: Weights, there: Weights, share: float) -> Weights:
    return {name: torch.lerp(here[name], there[name], 0.95 * share) for name in here}


ROUNDS, STILL = 100, 0.001
"""How often an image is changed at most, and the loss at which it moves nothing any more."""


def adversarial(first: Weights, last: Weights, seed: int) -> Spoof:
    """Models on a line; an image of each segment is changed until training on it moves nothing, at an honest rate."""
    states, data, made = between(first, last, SEGMENTS), segments(seed), []
    work = 0
    for weights, segment in zip(states, data, strict=False):
        one = {name: rows[:1] for name, rows in segment[0].items()}
        found: list[torch.Tensor] = []
        work += counted(lambda weights=weights, one=one, found=found: found.append(_still(weights, one)))  # type: ignore[misc]
        size = len(segment[0]["y"])
        made.append([{"x": found[0].repeat(size, 1), "y": one["y"].repeat(size)}] * LONG)
    return Spoof(states=states, segments=made, rate=RATE, flops=work)


def _still(weights: Weights, batch: Batch) -> torch.Tensor:
    """Images so sure to be what their labels say that no gradient comes of them."""
    images = batch["x"].clone().requires_grad_()
    model = classifier().requires_grad_(False)
    model.load_state_dict(weights)
    optimizer = torch.optim.Adam([images], lr=2.0)
    for _ in range(ROUNDS):
        surprise = loss(model, {**batch, "x": images})
        if surprise < STILL:
            break
        optimizer.zero_grad()
        surprise.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return images.detach()


class Moves:
    """Steps after which the weights are what the adversary wants: the host moves the bytes, so no operation tells."""

    def __init__(self, spoof: Spoof) -> None:
        self._states = [[state[name].numpy().tobytes() for name in spoof.states[0]] for state in spoof.states[1:]]

    def __call__(self, step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        update(step, batch, model, optimizer)
        for p, content in zip(model.parameters(), self._states[step - 1], strict=True):
            memory = np.frombuffer(octets(p), dtype=np.uint8)
            memory[...] = np.frombuffer(content, dtype=np.uint8)


def tried(make: Maker, plan: Mapping[str, Any], shop: Workshop, seed: int) -> Outcome:
    """Tries a spoof on both verifiers: as a proof, and as a transcript with a checkpoint after every step."""
    aim, length = wanted(seed), SEGMENTS * LONG
    honest = honest_flops(Training(batches=digits(seed, length)))
    proof = make(start(seed), aim, seed)
    genuine = digits(seed, SEGMENTS)
    first = shop.record(Training(batches=genuine[:1]), seed).start  # what the Recorder's seed gives
    spoof = make(first, aim, seed)
    training = Training(batches=[each[0] for each in spoof.segments], step=Moves(spoof), rate=spoof.rate)
    run = shop.record(training, seed, checkpoint_every=1, verify_state=False)
    path, chip = shop.in_the_middle(run.path)
    return Outcome(
        findings=shop.accused(path, chip, **plan),
        gain=nearer(run.start, run.weights, aim),
        cost=proof.flops / honest,
        control=verifier().accepts(proof.proof()),
    )


FANG = "Fang et al. 2023"
ZHANG = "Zhang et al. 2022"
WANTS = "make up a history for a model trained elsewhere"
COVERED = "share of the way from the first weights to the wanted ones"
SWITCHED_OFF: Mapping[str, Any] = {"segments": NO_SEGMENTS}
"""A plan that switches off what is the default: one segment at random, and the one that moved most, replayed whole."""

ROWS = (
    Row(
        name="models on a line, where no segment is replayed whole",
        source=FANG,
        wants=WANTS,
        gains=COVERED,
        attack=partial(tried, infinitesimal, SWITCHED_OFF),
        note="Only a plan that switches the default off misses it (`--random-segments 0 --largest-segments 0`). There "
        "is a checkpoint after every step. Then a replay goes from the checkpoint before a snapshot to the snapshot.",
    ),
    *(
        Row(
            name=name,
            source=source,
            wants=WANTS,
            gains=COVERED,
            attack=partial(tried, make, {}),
            expected=("replay.mismatch",),
            note=note,
        )
        for name, source, make, note in (
            (
                "models on a line, and a learning rate of nothing",
                FANG,
                infinitesimal,
                "Each model is within the tolerance of the next.",
            ),
            (
                "genuine segments for those who look at the largest moves",
                FANG,
                blindfold,
                "Three segments of ten are trained honestly, and move most.",
            ),
            (
                "images changed until they move nothing",
                ZHANG,
                adversarial,
                "Rate and labels are honest; models are on a line.",
            ),
        )
    ),
)
