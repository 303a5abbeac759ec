"""Models of images: transformer, residual network, U-Net."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from zoo.machines import Zoo
from zoo.material import Batch, real, whole


def labelled(batch: Batch, made: Any, optimizer: torch.optim.Optimizer) -> None:
    made(pixel_values=batch["x"], labels=batch["y"]).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


IMAGES = [{"x": real(4, 3, 16, 16, seed=i), "y": whole(5, 4, seed=i)} for i in range(3)]


def test_a_vision_transformer(zoo: Zoo) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        config = ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=16,
            patch_size=4, num_labels=5, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
        )  # fmt: skip
        model = ViTForImageClassification(config).train()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    zoo.holds(build, labelled, IMAGES)


def test_a_residual_network(zoo: Zoo) -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        config = ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="bottleneck", num_labels=5
        )
        model = ResNetForImageClassification(config).train()
        return model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-4)

    zoo.holds(build, labelled, IMAGES)


class UNet(nn.Module):
    """Down by a strided convolution, up by a transposed one, with group norm and a second way up by interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.down, self.below = nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1), nn.Conv2d(16, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = F.silu(self.norm(self.first(x)))
        coarse = F.silu(self.below(self.down(fine)))
        coarse = coarse + F.interpolate(F.avg_pool2d(coarse, 2), scale_factor=2, mode="bilinear")
        return self.last(torch.cat([fine, self.up(coarse)], 1))


def test_a_unet(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = UNet()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        noise = torch.randn_like(batch["x"])
        F.mse_loss(model(batch["x"] + noise), noise).backward()
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(build, step, [{"x": real(2, 1, 8, 8, seed=i)} for i in range(3)])
