"""Small models of the kinds that people train, for the benchmarks: each builds itself and can do one update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

Batch = dict[str, torch.Tensor]


@dataclass
class Step:
    """A model with its optimizer, and how it is fed and updated.

    Attributes:
        attached: What a Recorder must know of.
        batch: Returns the batch of a step number.
        update: Does one update.
    """

    attached: tuple[Any, ...]
    batch: Callable[[int], Batch]
    update: Callable[[Batch], None]


def _updater(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[Batch], torch.Tensor]
) -> Callable[[Batch], None]:
    def update(batch: Batch) -> None:
        loss(batch).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return update


def _text(vocabulary: int, rows: int, length: int) -> Callable[[int], Batch]:
    return lambda index: {
        "input_ids": torch.from_numpy(np.random.RandomState(index).randint(0, vocabulary, (rows, length)))
    }


def _language_model(model: Any, rows: int = 4, length: int = 64) -> Step:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = lambda batch: model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss  # noqa: E731
    return Step((model, optimizer), _text(256, rows, length), _updater(model, optimizer, loss))


def gpt2() -> Step:
    """A GPT-2 of 0.5 M parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return _language_model(GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=2, n_head=4)))


def llama() -> Step:
    """A Llama-style model with grouped queries."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return _language_model(LlamaForCausalLM(config))


def resnet() -> Step:
    """A small ResNet on 64x64 images."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=16, hidden_sizes=[32, 64, 128, 256], depths=[1, 1, 1, 1], num_labels=10)
    model = ResNetForImageClassification(config).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-4)

    def batch(index: int) -> Batch:
        random = np.random.RandomState(index)
        return {
            "pixel_values": torch.from_numpy(random.randn(8, 3, 64, 64).astype(np.float32)),
            "labels": torch.from_numpy(random.randint(0, 10, 8)),
        }

    return Step((model, optimizer), batch, _updater(model, optimizer, lambda b: model(**b).loss))


def perceptron() -> Step:
    """Dense layers and activations."""
    model = nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 256),
        nn.Tanh(), nn.Linear(256, 256), nn.Sigmoid(), nn.Linear(256, 64), nn.Softplus(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def batch(index: int) -> Batch:
        random = np.random.RandomState(index)
        return {
            "x": torch.from_numpy(random.randn(64, 64).astype(np.float32)),
            "y": torch.from_numpy(random.randint(0, 10, 64)),
        }

    return Step(
        (model, optimizer),
        batch,
        _updater(model, optimizer, lambda b: nn.functional.cross_entropy(model(b["x"]), b["y"])),
    )


MODELS: dict[str, Callable[[], Step]] = {"gpt2": gpt2, "llama": llama, "resnet": resnet, "perceptron": perceptron}
