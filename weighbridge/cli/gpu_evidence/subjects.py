"""What is trained for evidence about a device: models of published sizes, and tiny ones of the same kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn

Tensor = torch.Tensor
Batch = dict[str, Tensor]

SEED = 11


@dataclass
class Training:
    """A model with its optimizer on a device.

    Attributes:
        model: The model, in training mode.
        optimizer: Its optimizer.
        batch: Returns the batch of a step number, on the device.
        half: Whether products are computed in bfloat16, by autocast.
        device: `cpu` or `cuda`.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[int], Batch]
    half: bool
    device: str

    def update(self, batch: Batch) -> None:
        """Does one update."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
            loss = cast(Tensor, self.model(**batch).loss)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad()


def _on(device: str, batch: Batch) -> Batch:
    return {name: t.to(device) for name, t in batch.items()}


def gpt2(device: str, tiny: bool, half: bool) -> Training:
    """GPT-2 of the published size, 124 M parameters, with dropout, from scratch, on one row of 64 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100} if tiny else {}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    with torch.device(device):
        model = GPT2LMHeadModel(config).train()

    def batch(index: int) -> Batch:
        tokens = torch.from_numpy(np.random.RandomState(index).randint(0, config.vocab_size, (1, 64)))
        return _on(device, {"input_ids": tokens, "labels": tokens.clone()})

    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1, foreach=True)
    return Training(model, optimizer, batch, half, device)


def resnet(device: str, tiny: bool, half: bool) -> Training:
    """ResNet-50, 23.5 M parameters, on two images of 224x224."""
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]} if tiny else {}
    with torch.device(device):
        model = ResNetForImageClassification(ResNetConfig(**sizes)).train()
    side = 32 if tiny else 224

    def batch(index: int) -> Batch:
        random = np.random.RandomState(index)
        images = torch.from_numpy(random.randn(2, 3, side, side).astype(np.float32))
        return _on(device, {"pixel_values": images, "labels": torch.from_numpy(random.randint(0, 2, 2))})

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, foreach=True)
    return Training(model, optimizer, batch, half, device)


Maker = Callable[[str, bool], Training]

SUBJECTS: dict[str, Maker] = {
    "gpt2-124m": lambda device, tiny: gpt2(device, tiny, half=False),
    "resnet50": lambda device, tiny: resnet(device, tiny, half=False),
    "gpt2-124m-bf16": lambda device, tiny: gpt2(device, tiny, half=True),
    "resnet50-bf16": lambda device, tiny: resnet(device, tiny, half=True),
}


def policy(name: str) -> str:
    """The policy that a subject is recorded under: products in 16 bits have calibrated bounds only."""
    return "calibrated" if name.endswith("bf16") else "strict"


def cast_floats(batch: Batch, dtype: torch.dtype) -> Batch:
    """Returns a batch whose floating tensors have another type."""
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in batch.items()}
