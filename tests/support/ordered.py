"""Trainings that a client ordered of a service: a small recipe, its rehearsal, and what may be delivered instead."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from support.audited import key
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from prover import Recorder
from weighbridge.attest.training_order import SignedOrder, TrainingOrder, sign
from weighbridge.transcript.data import DataCommitment, OrderSeed, permutation

_BATCH = 3
CLIENT, SERVICE, STEPS, SEED = key(31), key(32), 6, 11
ORDER = TrainingOrder(
    name="perceptron",
    client=CLIENT.public,
    service=SERVICE.public,
    steps=STEPS,
    passport=b"p" * 32,
    numbers={b"a" * 32: b"1" * 32, b"b" * 32: b"2" * 32},
    data=b"d" * 32,
    records=12,
    seed=SEED,
    nonce=b"n" * 32,
)


def record(
    path: Path, *, steps: int = STEPS, seed: int = SEED, rate: float = 0.1, data: int = 1,
    seeded: int | None = None, later: int | None = None, pace: int = 0, made: bool = True,
    sizes: Sequence[int] = (_BATCH,), **options: Any,
) -> None:  # fmt: skip
    """Records a perceptron with momentum on a data set of twelve records, in an order that follows from the seed.

    Args:
        path: The transcript.
        steps: How many updates.
        seed: The run's.
        rate: Of the optimizer.
        data: Which data set.
        seeded: With what the program seeds its generator before it makes its weights, if it does.
        later: With what it does so before the third update.
        pace: How far its schedule goes in each update; 0 if it has none.
        sizes: How many records its steps take, one after the other and from the beginning again.
        made: Whether the transcript has how the weights were made.
        options: Of the Recorder.
    """
    generator = torch.Generator().manual_seed(data)
    rows, labels = torch.randn(12, 4, generator=generator), torch.arange(12) % 3
    records = ({"x": rows[at], "y": labels[at]} for at in range(12))
    ends = [0, *itertools.accumulate(itertools.islice(itertools.cycle(sizes), steps))]
    epochs = -(-ends[-1] // 12)
    ids = [int(at) for epoch in range(epochs) for at in permutation(seed, epoch, 12)]
    commitment = DataCommitment.over(records, OrderSeed(seed, epochs))
    with Recorder(path, seed=seed, data=commitment, checkpoint_every=2, **options) as recorder:
        with recorder.initialisation() if made else nullcontext():
            if seeded is not None:
                torch.manual_seed(seeded)
            model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.1), nn.Linear(5, 3))
            optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        schedules = [CosineAnnealingLR(optimizer, 50)] if pace else []
        recorder.attach(model, optimizer, *schedules)
        for step in range(steps):
            if later is not None and step == 2:
                torch.manual_seed(later)
            taken = ids[ends[step] : ends[step + 1]]
            batch = {"x": rows[taken].clone(), "y": labels[taken].clone()}
            with recorder.step(batch, records=taken):
                nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
                optimizer.step()
                optimizer.zero_grad()
            for _ in range(pace):
                schedules[0].step()


def accepted(order: TrainingOrder = ORDER) -> SignedOrder:
    """Returns an order that both parties signed."""
    return sign(order, CLIENT).accept(SERVICE)
