"""A very small training on a chip, as a process: `python train_job.py MODE SOCKET [OUT]`.

Modes: `declared` (recorded), `hidden` (not recorded), `beside` (recorded, with a second model trained between steps).
"""

from __future__ import annotations

import sys
import warnings
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from firmware_sim import Shim
from prover import Recorder, formulas

STEPS = 4
FORMULAS = formulas.constant(1e-2) | formulas.adamw()
SNAPSHOT_IN = 3


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> None:
    nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
    optimizer.step()
    optimizer.zero_grad()


def batch_of(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "x": torch.randn(16, 32, generator=generator),
        "y": torch.randint(0, 8, (16,), generator=generator),
    }


def main(mode: str, socket: str, out: str | None) -> None:
    warnings.simplefilter("ignore")
    batches = [batch_of(step) for step in range(STEPS)]
    with Shim.connect(socket) as chip:
        recorder: Any = nullcontext()
        if mode != "hidden":
            assert out is not None
            recorder = Recorder(out, seed=1, chip=chip, checkpoint_every=2, formulas=FORMULAS)
        with recorder:
            with recorder.initialisation() if mode != "hidden" else nullcontext():
                model, optimizer = build()
            if mode != "hidden":
                recorder.attach(model, optimizer)
            beside = build() if mode == "beside" else None
            model.register_forward_hook(lambda *_: chip.request_snapshot() if step == SNAPSHOT_IN else None)
            for step in range(1, STEPS + 1):  # noqa: B007 (the hook reads it)
                batch = batches.pop(0)
                with recorder.step(batch) if mode != "hidden" else nullcontext():
                    update(model, optimizer, batch)
                if beside is not None:
                    update(*beside, batch)
            if mode == "hidden":  # the chip waits so many kernels for a safepoint that never comes
                for _ in range(10):
                    update(model, optimizer, batch)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
