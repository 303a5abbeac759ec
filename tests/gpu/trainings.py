"""Small trainings on a device of choice: what is recorded on one and replayed on another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

Tensor = torch.Tensor
Batch = dict[str, Tensor]
UPDATES = 3


def _whole(high: int, *shape: int, seed: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def _real(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass
class Kind:
    """One kind of training.

    Attributes:
        model: Makes the model, inside `torch.device`.
        batch: Makes the batch of a number, on the CPU.
        loss: The loss of a model on a batch.
    """

    model: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[Any, Batch], Tensor]


def _own_loss(model: Any, batch: Batch) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


def _classify(model: Any, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"]).float(), batch["y"])


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def _resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 4}
    return ResNetForImageClassification(ResNetConfig(**sizes))


def _minilm() -> nn.Module:
    """The shape of MiniLM, small and untrained: a BERT with dropout and a head for two classes."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes: dict[str, Any] = {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
        "max_position_embeddings": 16, "num_labels": 2,
    }  # fmt: skip
    return BertForSequenceClassification(BertConfig(**sizes))


class Recurrent(nn.Module):
    """Two LSTM layers with dropout between them, and a head on the last output."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.LSTM(6, 16, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(x)[0][:, -1])


class Recomputed(nn.Module):
    """Blocks with dropout whose activations are computed again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(6, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.3), nn.LayerNorm(16)) for _ in range(2)
        )
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class Graph(nn.Module):
    """Messages along edges, added up at their ends; then the last message to each node is kept as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.head = nn.Linear(6, 8), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        source = torch.arange(40, device=x.device) * 7 % x.shape[0]
        target = torch.arange(40, device=x.device) * 3 % x.shape[0]
        sent = self.message(x)[source]
        total = torch.zeros(x.shape[0], 8, device=x.device, dtype=sent.dtype).index_add(0, target, sent)
        last = torch.zeros_like(total).index_put((target,), sent)
        return self.head(torch.cat([total, last.detach()], 1))


def _tokens(number: int) -> Batch:
    tokens = _whole(64, 2, 16, seed=number)
    return {"input_ids": tokens, "labels": tokens.clone()}


def _points(number: int) -> Batch:
    return {"x": _real(8, 6, seed=number), "y": _whole(3, 8, seed=number)}


KINDS = {
    "gpt2": Kind(_gpt2, _tokens, _own_loss),
    "resnet": Kind(
        _resnet,
        lambda n: {"pixel_values": _real(2, 3, 32, 32, seed=n), "labels": _whole(4, 2, seed=n)},
        _own_loss,
    ),
    "minilm": Kind(
        _minilm,
        lambda n: {"input_ids": _whole(64, 3, 12, seed=n), "labels": _whole(2, 3, seed=n)},
        _own_loss,
    ),
    "lstm": Kind(Recurrent, lambda n: {"x": _real(4, 5, 6, seed=n), "y": _whole(3, 4, seed=n)}, _classify),
    "checkpointed": Kind(lambda: Recomputed(False), _points, _classify),
    "checkpointed-reentrant": Kind(lambda: Recomputed(True), _points, _classify),
    "graph": Kind(Graph, _points, _classify),
}
