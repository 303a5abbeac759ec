"""Small trainings whose operations are measured for calibrated bounds: between them, what common models compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from weighbridge.cli.gpu_evidence.subjects import Batch, Training

_TOKENS: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}  # the library's own lie outside small vocabularies
_WIDTH, _VOCABULARY, _ROWS, _LENGTH = 128, 256, 4, 64


class _Classifier(nn.Module):
    """Dense layers and activations, with the loss in what it returns, as Transformers' models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 256),
            nn.Tanh(), nn.Linear(256, 256), nn.Sigmoid(), nn.Linear(256, 64), nn.Softplus(), nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        from types import SimpleNamespace

        return SimpleNamespace(loss=nn.functional.cross_entropy(self.layers(x), labels))


def _made(model: nn.Module, device: str, batch: Callable[[Any], dict[str, Any]]) -> Training:
    def on_device(index: int) -> Batch:
        return {name: torch.from_numpy(x).to(device) for name, x in batch(np.random.RandomState(index)).items()}

    return Training(model.train(), torch.optim.Adam(model.parameters(), lr=1e-3), on_device, False, device)


def _text(random: Any) -> dict[str, Any]:
    tokens = random.randint(0, _VOCABULARY, (_ROWS, _LENGTH))
    return {"input_ids": tokens, "labels": tokens.copy()}


def _images(random: Any) -> dict[str, Any]:
    return {"pixel_values": random.randn(8, 3, 64, 64).astype(np.float32), "labels": random.randint(0, 10, 8)}


def _points(random: Any) -> dict[str, Any]:
    return {"x": random.randn(64, 64).astype(np.float32), "labels": random.randint(0, 10, 64)}


def gpt2(device: str) -> Training:
    """A GPT-2 of 0.5 M parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=_VOCABULARY, n_positions=_LENGTH, n_embd=_WIDTH, n_layer=2, n_head=4, **_TOKENS)
    with torch.device(device):
        return _made(GPT2LMHeadModel(config), device, _text)


def llama(device: str) -> Training:
    """A Llama-style model with grouped queries."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_VOCABULARY, hidden_size=_WIDTH, intermediate_size=2 * _WIDTH, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    with torch.device(device):
        return _made(LlamaForCausalLM(config), device, _text)


def resnet(device: str) -> Training:
    """A small ResNet on 64x64 images."""
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes: dict[str, Any] = {"embedding_size": 16, "hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 1, 1]}
    sizes["num_labels"] = 10
    with torch.device(device):
        return _made(ResNetForImageClassification(ResNetConfig(**sizes)), device, _images)


def perceptron(device: str) -> Training:
    """Dense layers and activations."""
    with torch.device(device):
        return _made(_Classifier(), device, _points)


TRAININGS: dict[str, Callable[[str], Training]] = {
    "gpt2": gpt2, "llama": llama, "resnet": resnet, "perceptron": perceptron,
}  # fmt: skip
