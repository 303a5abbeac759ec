"""Programs with timm, for an environment that has it: `python timm_programs.py schedules`, or `mix HOW OUT`.

`schedules` prints, for each of timm's schedulers, the formulas that were read from it and by how much they differ from
its rates, as JSON. `mix` records a training whose Mixup draws in the loop: HOW is `bare`, or `batches` where
`run.batches` is told of the mixed batches.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import timm.scheduler as schedules
import torch
from timm.data.mixup import Mixup
from timm.loss import SoftTargetCrossEntropy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import prover
from prover.capture.derived_formulas import Derived
from weighbridge.transcript.formula_terms import Formulas

CASES: dict[str, Any] = {
    "cosine": lambda o: schedules.CosineLRScheduler(o, 40, lr_min=1e-5, t_in_epochs=False),
    "warmed": lambda o: schedules.CosineLRScheduler(
        o, 20, warmup_t=5, warmup_lr_init=1e-4, warmup_prefix=True, t_in_epochs=False
    ),
    "cycles": lambda o: schedules.CosineLRScheduler(
        o, 10, cycle_limit=3, cycle_decay=0.5, k_decay=1.5, warmup_t=3, t_in_epochs=False
    ),
    "steps": lambda o: schedules.StepLRScheduler(o, decay_t=7, decay_rate=0.3, warmup_t=4, t_in_epochs=False),
    "noisy": lambda o: schedules.CosineLRScheduler(o, 40, noise_range_t=(2, 30), t_in_epochs=False),
    "growing": lambda o: schedules.CosineLRScheduler(o, 10, cycle_mul=2.0, cycle_limit=2, t_in_epochs=False),
    "plateau": lambda o: schedules.PlateauLRScheduler(o, patience_t=1),
}


def read(name: str) -> dict[str, Any]:
    """Reads the formulas of a scheduler, and compares them with 48 updates of two groups."""
    groups = [{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)], "lr": 3e-3, "lr_scale": 0.5}]
    optimizer = torch.optim.SGD(groups, lr=1e-2)
    scheduler = CASES[name](optimizer)
    derived = Derived([optimizer])
    rates = [text for text in derived.declared if text.startswith("lr")]
    parsed, apart = Formulas.parse(derived.declared), 0.0
    for update in range(1, 49):
        counts = derived.counts()
        for number, rate in enumerate(rates):
            given = parsed.evaluate(rate, update, counts=counts)[0]
            apart = max(apart, abs(given - optimizer.param_groups[number]["lr"]))
        scheduler.step_update(update)
    return {"formulas": sorted(derived.declared), "apart": apart, "counts": derived.counts()}


def mix(how: str, out: Path) -> None:
    """Records a training with Mixup in its loop."""
    pictures = torch.from_numpy(np.random.default_rng(0).random((64, 1, 4, 4), dtype=np.float32))
    labels = torch.from_numpy(np.arange(64) % 3)
    with prover.follow(out, seed=7) as run:
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mixup, criterion = Mixup(mixup_alpha=0.8, num_classes=3), SoftTargetCrossEntropy()
        loader: Any = DataLoader(TensorDataset(pictures, labels), batch_size=4, shuffle=True)
        mixed = (mixup(x, y) for x, y in loader)
        for x, y in run.batches(mixed) if how == "batches" else mixed:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "mix":
        mix(sys.argv[2], Path(sys.argv[3]))
    else:
        print(json.dumps({name: read(name) for name in CASES}))
