"""Random numbers made to order: weights of a model made elsewhere come in through where generators start.

Every number that a program draws is a function of the run's seed and a counter, so a Prover who may choose counters
searches for those whose draws it wants. The transcripts are those of real recordings, they replay, and no program in
them is odd. What was chosen is in the ledger, bit for bit.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from redteam.row import Outcome, Row
from redteam.values import COVERED, LAUNDER
from redteam.workshop import Training, Workshop, classifier, digits, honest_flops, nearer, plainly, weights_of
from torch import Tensor, nn

from weighbridge.numerics.random import philox

TRIED = 1 << 14
"""Counters that are searched for each weight."""
RANGE = 1 << 16
HALF = 1.0
"""Weights of -HALF to HALF can be drawn."""
OWN = 2
"""The number of a program's first own generator."""
STEPS = 6


@lru_cache(maxsize=1)
def drawn(seed: int) -> Tensor:
    """What `number` gives at each counter."""
    words = [philox.wide_words(seed, OWN << 12, at, 1)[0] for at in range(TRIED)]
    return (torch.from_numpy((np.array(words) % RANGE).astype(np.int64)) - RANGE // 2) * (2 * HALF / RANGE)


def number(generator: torch.Generator) -> Tensor:
    """One weight: a number that a generator draws."""
    return torch.randint(-RANGE // 2, RANGE // 2, (1,), generator=generator) * (2 * HALF / RANGE)


def counters(wanted: Tensor, seed: int) -> list[int]:
    """The counters whose first draw is nearest to the wanted weights, in a run of a seed."""
    return [int((drawn(seed) - w).abs().argmin()) for w in wanted.reshape(-1)]


def drawn_weights(shop: Workshop, seed: int) -> Outcome:
    """The initialisation seeds a generator before each number that it draws; these are the wanted weights."""
    training = Training(batches=digits(seed, STEPS))
    aim = plainly(Training(batches=digits(seed + 1000, 10 * STEPS)), seed + 1000)
    starts = {name: counters(weight, seed) for name, weight in aim.items()}

    def build() -> nn.Sequential:
        model, own = classifier(), torch.Generator()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(torch.cat([number(own.manual_seed(start)) for start in starts[name]]).view_as(p))
        return model

    run = shop.record(Training(batches=training.batches, build=build), seed)
    return Outcome(
        findings=shop.accused(run.path),
        gain=nearer(weights_of(classifier()), run.start, aim),
        cost=run.flops / honest_flops(Training(batches=digits(seed, 10 * STEPS))),
    )


ROWS = (
    Row(
        name="first weights drawn one by one, each by a generator seeded for it",
        source="attacks on the ledger of chosen bits",
        wants=LAUNDER,
        gains=COVERED,
        attack=drawn_weights,
        expected=("transcript.chosen_bits",),
        note="One `manual_seed` and one `randint` for each weight, in the initialisation, where noise is expected. "
        "Each counter was searched for among 16,384; the search is not in the cost.",
    ),
)
