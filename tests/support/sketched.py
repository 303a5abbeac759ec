"""Runs that were recorded with sketches, in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.recordings import train
from torch import nn

from weighbridge.numerics.sketches.step_sketches import MAGIC

STEPS = 3
HEADER = len(MAGIC) + 9


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Three wide layers."""
    model = nn.Sequential(nn.Linear(300, 400), nn.GELU(), nn.Linear(400, 300), nn.Tanh(), nn.Linear(300, 10))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(batch: torch.Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One step under autocast in bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(batch).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def batches() -> Iterator[torch.Tensor]:
    """Batches of 128 rows."""
    for seed in range(STEPS):
        yield torch.randn(128, 300, generator=torch.Generator().manual_seed(seed))


def record(path: Path, **options: Any) -> Path:
    """Records three steps with sketches; `options` are those of the Recorder."""
    train(path, build, step, batches(), every=2, **{"logs": "sketch", "device": "cpu", **options})
    return path


def garbage(fields: dict[str, Any]) -> bytes:
    """Sketches of the same size as those of a record that are no sketches of anything."""
    named = fields["rounding"]
    size = int.from_bytes(named[HEADER - 8 : HEADER], "little")
    noise = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8).tobytes()
    return bytes(named[:HEADER] + noise + named[HEADER + size :])
