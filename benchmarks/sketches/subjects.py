"""What the experiment on sketches records: a transformer and a convolutional model of 11 M weights, in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import torch

from benchmarks import models
from benchmarks.models import Batch, Step
from prover import Recorder

SEED = 11
PRECISIONS: dict[str, tuple[torch.dtype | None, torch.dtype | None]] = {
    "bf16 autocast": (None, torch.bfloat16),
    "bf16 weights": (torch.bfloat16, None),
}
"""Type of the weights, type of autocast."""


def resnet_11m() -> Step:
    """ResNet-18, 11.2 M parameters, on eight images of 64x64."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(  # type: ignore[call-arg]
        hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=10
    )
    model = ResNetForImageClassification(config).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-4)

    def batch(index: int) -> Batch:
        random = np.random.RandomState(index)
        return {
            "pixel_values": torch.from_numpy(random.randn(8, 3, 64, 64).astype(np.float32)),
            "labels": torch.from_numpy(random.randint(0, 10, 8)),
        }

    return Step(model, optimizer, batch, lambda b: cast(torch.Tensor, model(**b).loss))


SUBJECTS: dict[str, Callable[[], Step]] = {"gpt2-11m": models.gpt2_11m, "resnet-11m": resnet_11m}


def record(name: str, precision: str, steps: int, path: Path) -> int:
    """Records a model in one precision with its logs in full; returns how many weights it has."""
    weights, autocast = PRECISIONS[precision]
    with Recorder(path, seed=SEED, checkpoint_every=steps + 1, logs="full", device="cpu") as recorder:
        with recorder.initialisation():
            step = SUBJECTS[name]()
            step.autocast = autocast
            step = step if weights is None else step.to(weights)
        recorder.attach(*step.attached)
        for number in range(steps):
            batch = step.batch(number)
            with recorder.step(batch):
                step.update(batch)
    return sum(p.numel() for p in step.model.parameters())
