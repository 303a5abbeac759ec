"""Models of images: transformer, residual network, U-Net."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from zoo.machines import Zoo
from zoo.material import Batch, classify, real, whole


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


class Spatial(nn.Module):
    """Looks at an image through a window that it places itself (Jaderberg et al. 2015), and classifies what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Sequential(nn.Conv2d(3, 4, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 6))
        self.see = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        theta = self.locate(x).view(-1, 2, 3) + torch.eye(2, 3) * 0.9
        window = F.affine_grid(theta, (len(x), 3, 8, 8), align_corners=False)
        return self.see(F.grid_sample(x, window, padding_mode="border", align_corners=False))


def test_a_spatial_transformer(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Spatial()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    zoo.holds(build, classify, IMAGES, every=1)
    zoo.trains_as_without(build, classify, IMAGES)


def test_sampling_in_every_mode(zoo: Zoo) -> None:
    """Planes and volumes whose elements and grids are both learned."""

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        shapes = {"plane": (2, 3, 5, 4), "volume": (2, 3, 4, 3, 2), "flat": (2, 2, 3), "solid": (2, 3, 4)}
        model = nn.ParameterDict({name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()})
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Batch, model: nn.ParameterDict, optimizer: torch.optim.Optimizer) -> None:
        losses = []
        planes, volumes = (model["plane"], model["flat"], (4, 3)), (model["volume"], model["solid"], (2, 3, 2))
        for (x, theta, out), align in product((planes, volumes), (True, False)):
            grid = F.affine_grid(theta, [2, 3, *out], align_corners=align)
            modes = ("bilinear", "nearest", "bicubic") if x.dim() == 4 else ("bilinear", "nearest")
            for mode, padding in product(modes, ("zeros", "border", "reflection")):
                sampled = F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=align)
                losses.append(sampled.square().mean())
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(build, step, [{}])


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
