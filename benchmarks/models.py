"""Small models of the kinds that people train, for the benchmarks: each builds itself and can do one update."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import nn

Tensor = torch.Tensor
Batch = dict[str, Tensor]

_TOKENS: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}  # the library's own lie outside small vocabularies


@dataclass
class Step:
    """A model with its optimizer, and how it is fed and updated.

    Attributes:
        model: The model, in training mode.
        optimizer: Its optimizer.
        batch: Returns the batch of a step number.
        loss: Returns the loss of a batch, a scalar.
        autocast: The type that autocast computes matrix products in, if it is used.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[int], Batch]
    loss: Callable[[Batch], Tensor]
    autocast: torch.dtype | None = None

    @property
    def attached(self) -> tuple[Any, ...]:
        """What a Recorder must know of."""
        return self.model, self.optimizer

    def update(self, batch: Batch) -> None:
        """Does one update."""
        with torch.autocast("cpu", self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            loss = self.loss(batch)
        self.descend(loss)

    def descend(self, loss: Tensor) -> None:
        """Does the part of an update that follows the loss."""
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def to(self, dtype: torch.dtype) -> Step:
        """Returns the same training with weights, buffers and batches of another floating type.

        To be called before the first update: the optimizer's state takes the type of the weights.
        """
        return replace(self, model=self.model.to(dtype), batch=lambda index: cast_floats(self.batch(index), dtype))


def cast_floats(batch: Batch, dtype: torch.dtype) -> Batch:
    """Returns a batch whose floating tensors have another type."""
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in batch.items()}


def _text(vocabulary: int, rows: int, length: int) -> Callable[[int], Batch]:
    return lambda index: {
        "input_ids": torch.from_numpy(np.random.RandomState(index).randint(0, vocabulary, (rows, length)))
    }


def _language_model(model: Any, rows: int = 4, length: int = 64) -> Step:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(batch: Batch) -> Tensor:
        """As the library's own, which would compute it in float32 even in a float64 model."""
        tokens = batch["input_ids"]
        logits = model(input_ids=tokens).logits[:, :-1]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return Step(model, optimizer, _text(256, rows, length), loss)


def gpt2() -> Step:
    """A GPT-2 of 0.5 M parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return _language_model(
        GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=2, n_head=4, **_TOKENS))
    )


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

    config = ResNetConfig(embedding_size=16, hidden_sizes=[32, 64, 128, 256], depths=[1, 1, 1, 1], num_labels=10)  # type: ignore[call-arg]
    model = ResNetForImageClassification(config).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-4)

    def batch(index: int) -> Batch:
        random = np.random.RandomState(index)
        return {
            "pixel_values": torch.from_numpy(random.randn(8, 3, 64, 64).astype(np.float32)),
            "labels": torch.from_numpy(random.randint(0, 10, 8)),
        }

    return Step(model, optimizer, batch, lambda b: cast(Tensor, model(**b).loss))


def _points(rows: int, width: int, classes: int) -> Callable[[int], Batch]:
    def batch(index: int) -> Batch:
        random = np.random.RandomState(index)
        return {
            "x": torch.from_numpy(random.randn(rows, width).astype(np.float32)),
            "y": torch.from_numpy(random.randint(0, classes, rows)),
        }

    return batch


def _cross_entropy(model: nn.Module) -> Callable[[Batch], Tensor]:
    return lambda b: nn.functional.cross_entropy(model(b["x"]), b["y"])


def perceptron() -> Step:
    """Dense layers and activations."""
    model = nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 256),
        nn.Tanh(), nn.Linear(256, 256), nn.Sigmoid(), nn.Linear(256, 64), nn.Softplus(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Step(model, optimizer, _points(64, 64, 10), _cross_entropy(model))


class _Recurrent(nn.Module):
    """An LSTM that reads sequences of 32 vectors and classifies them by its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.LSTM(32, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.core(x)
        return cast(Tensor, self.head(out[:, -1]))


def lstm() -> Step:
    """A network of two LSTM layers, which PyTorch computes with a vendor's kernel on the CPU."""
    model = _Recurrent()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def batch(index: int) -> Batch:
        random = np.random.RandomState(index)
        return {
            "x": torch.from_numpy(random.randn(16, 32, 32).astype(np.float32)),
            "y": torch.from_numpy(random.randint(0, 10, 16)),
        }

    return Step(model, optimizer, batch, _cross_entropy(model))


def mlp_2m() -> Step:
    """A perceptron of 1.9 M parameters with dense layers, batch norm and ReLU, trained by SGD with momentum."""
    widths = (64, 1024, 1024, 768)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=5e-4)
    return Step(model, optimizer, _points(16, widths[0], 10), _cross_entropy(model))


def gpt2_2m() -> Step:
    """A GPT-2 of 1.9 M parameters on two rows of 16 tokens, trained by AdamW."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=512, n_positions=16, n_embd=192, n_layer=4, n_head=4, **_TOKENS)
    return _language_model(GPT2LMHeadModel(config), rows=2, length=16)


def gpt2_11m() -> Step:
    """A GPT-2 of 11 M parameters on four rows of 128 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=1024, n_positions=128, n_embd=384, n_layer=6, n_head=6, **_TOKENS)
    return _language_model(GPT2LMHeadModel(config), rows=4, length=128)


MODELS: dict[str, Callable[[], Step]] = {"gpt2": gpt2, "llama": llama, "resnet": resnet, "perceptron": perceptron}
"""What the bounds are calibrated with."""

OTHERS: dict[str, Callable[[], Step]] = {"lstm": lstm, "mlp-2m": mlp_2m, "gpt2-2m": gpt2_2m, "gpt2-11m": gpt2_11m}
"""What else is measured."""


PRECISIONS = ("bf16 autocast", "bf16")
"""Precisions beside float32: weights in float32 and products in bfloat16, and everything in bfloat16."""


def in_precision(made: Step, precision: str) -> Step:
    """Returns the same training in one of `PRECISIONS`; to be called before the first update."""
    if precision == "bf16 autocast":
        return replace(made, autocast=torch.bfloat16)
    return made.to(torch.bfloat16) if precision == "bf16" else made


def named(name: str) -> Callable[[], Step]:
    """Returns the maker of a model."""
    return {**MODELS, **OTHERS}[name]
