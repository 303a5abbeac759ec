"""What people do around a model: adapters, teachers, mixtures of records, sharpness, averages, norms of weights."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from zoo.machines import Zoo
from zoo.material import Batch, classify, perceptron, real, rows, whole

Tensor = torch.Tensor
Optimizer = torch.optim.Optimizer


class LowRank(nn.Module):
    """A frozen linear layer and a product of two thin matrices."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.empty(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.dropout(x, 0.1, self.training) @ self.a.T @ self.b.T * (16 / 2)


def test_low_rank_adapters(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, Optimizer]:
        model: Any = perceptron()
        model[0], model[2] = LowRank(model[0]), LowRank(model[2])
        return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    zoo.holds(build, classify, rows())


def test_a_student_and_its_teacher(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, Optimizer, nn.Module]:
        teacher = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 3)).eval()
        model = perceptron()
        return model, torch.optim.Adam(model.parameters()), teacher.requires_grad_(False)

    def step(batch: Batch, model: nn.Module, optimizer: Optimizer, teacher: nn.Module) -> None:
        with torch.no_grad():
            wanted = teacher(batch["x"])
        h, t = model(batch["x"]), 2.0
        soft = F.kl_div(F.log_softmax(h / t, -1), F.log_softmax(wanted / t, -1), reduction="batchmean", log_target=True)
        (0.7 * t * t * soft + 0.3 * F.cross_entropy(h, batch["y"])).backward()
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(build, step, rows())


def test_mixed_records_and_smooth_labels(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, Optimizer]:
        model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch: Batch, model: nn.Module, optimizer: Optimizer) -> None:
        share, order = torch.rand(()), torch.randperm(len(batch["x"]))
        x = share * batch["x"] + (1 - share) * batch["x"][order]
        top, left = torch.randint(0, 5, (2,)).tolist()  # a patch of another record, and a turn for some
        x[:, :, top : top + 4, left : left + 4] = batch["x"][order][:, :, top : top + 4, left : left + 4]
        x = torch.where((torch.rand(len(x)) < 0.5)[:, None, None, None], x.flip(-1), x)
        h = model(x)
        loss = share * F.cross_entropy(h, batch["y"], label_smoothing=0.1)
        loss = loss + (1 - share) * F.cross_entropy(h, batch["y"][order], label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(build, step, [{"x": real(4, 1, 8, 8, seed=i), "y": whole(3, 4, seed=i)} for i in range(3)])


def test_two_backward_passes_for_a_flat_minimum(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, Optimizer]:
        model = perceptron()
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(batch: Batch, model: nn.Module, optimizer: Optimizer) -> None:
        F.cross_entropy(model(batch["x"]), batch["y"]).backward()
        moves: list[tuple[nn.Parameter, Tensor]] = []
        with torch.no_grad():
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            size = torch.norm(torch.stack([g.norm(2) for g in grads]), 2)
            for p in model.parameters():
                assert p.grad is not None
                move = p.grad * (0.05 / (size + 1e-12))
                p.add_(move)
                moves.append((p, move))
        optimizer.zero_grad()
        F.cross_entropy(model(batch["x"]), batch["y"]).backward()
        with torch.no_grad():
            for p, move in moves:
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(build, step, rows())


def test_an_average_by_hand_that_teaches(zoo: Zoo) -> None:
    """A momentum teacher and a queue of negatives, as in contrastive learning without labels."""

    def build() -> tuple[Any, ...]:
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        queue = nn.Module()
        queue.register_buffer("keys", F.normalize(torch.randn(12, 4), dim=-1))
        queue.register_buffer("at", torch.zeros(1, dtype=torch.long))
        return model, torch.optim.Adam(model.parameters(), lr=1e-2), copy.deepcopy(model).requires_grad_(False), queue

    def step(batch: Batch, model: nn.Module, optimizer: Optimizer, slow: nn.Module, queue: Any) -> None:
        x = batch["x"]
        a = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=-1)
        with torch.no_grad():
            for s, p in zip(slow.parameters(), model.parameters(), strict=True):
                s.mul_(0.99).add_(p, alpha=0.01)
            b = F.normalize(slow(x + 0.1 * torch.randn_like(x)), dim=-1)
        logits = torch.cat([(a * b).sum(-1, keepdim=True), a @ queue.keys.clone().T], -1) / 0.2
        F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long)).backward()
        optimizer.step()
        optimizer.zero_grad()
        at = int(queue.at)
        queue.keys[at : at + 4] = b[:4]
        queue.at[0] = (at + 4) % 12

    zoo.holds(build, step, rows())


class Renorm(nn.Module):
    """Batch norm corrected towards its running statistics, with bounds on the correction."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("std", torch.ones(n))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(0), x.std(0, unbiased=False) + 1e-3
        r = (std.detach() / self.std).clamp(1 / 3, 3)
        d = ((mean.detach() - self.mean) / self.std).clamp(-5, 5)
        self.mean += 0.1 * (mean.detach() - self.mean)
        self.std += 0.1 * (std.detach() - self.std)
        self.seen += 1
        return ((x - mean) / std * r + d) * self.weight + self.bias


def test_norms_of_weights_and_batches(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, Optimizer]:
        normed = nn.utils.parametrizations
        model = nn.Sequential(
            normed.weight_norm(nn.Linear(6, 8)), Renorm(8), nn.ReLU(), normed.spectral_norm(nn.Linear(8, 8)), nn.Tanh(),
            normed.orthogonal(nn.Linear(8, 8), orthogonal_map="householder"), nn.Linear(8, 3),
        )  # fmt: skip
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    zoo.holds(build, classify, rows())


class Noised(nn.Module):
    """Predicts the noise in a picture, told how much there is."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8))
        self.enter, self.norm, self.leave = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Conv2d(8, 1, 3, 1, 1)
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-4, 0.2, 20), 0))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        wave = t[:, None] * torch.exp(-math.log(1e4) * torch.arange(4) / 4)
        h = self.time(torch.cat([wave.sin(), wave.cos()], -1))
        return self.leave(F.silu(self.norm(self.enter(x) + h[..., None, None])))


def test_a_diffusion(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, Optimizer, nn.Module]:
        model = Noised()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3), copy.deepcopy(model)

    def step(batch: Batch, model: Any, optimizer: Optimizer, average: nn.Module) -> None:
        t = torch.randint(0, 20, (len(batch["x"]),))
        kept, noise = model.kept[t][:, None, None, None], torch.randn_like(batch["x"])
        x = kept.sqrt() * batch["x"] + (1 - kept).sqrt() * noise
        if torch.rand(1).item() < 0.5:  # self-conditioning, for some steps
            with torch.no_grad():
                x = x - 0.1 * model(x, t)
        weight = (kept / (1 - kept)).clamp(max=5).flatten()
        (weight * F.mse_loss(model(x, t), noise, reduction="none").mean((1, 2, 3))).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)

    zoo.holds(build, step, [{"x": real(3, 1, 6, 6, seed=i)} for i in range(3)])


def test_a_critic_with_a_gradient_penalty(zoo: Zoo) -> None:
    """Second derivatives: the penalty is on the gradient of the critic by its input."""

    def build() -> tuple[nn.Module, Optimizer]:
        model = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.LayerNorm(16), nn.Linear(16, 1))
        return model, torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def step(batch: Batch, model: nn.Module, optimizer: Optimizer) -> None:
        true, made = batch["x"], torch.randn_like(batch["x"])
        share = torch.rand(len(true), 1)
        between = (share * true + (1 - share) * made).requires_grad_()
        (grad,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
        loss = model(made).mean() - model(true).mean() + 10 * ((grad.norm(2, dim=1) - 1) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(build, step, rows())


def test_gradients_of_each_record_with_noise(zoo: Zoo) -> None:
    """Differentially private training by functional gradients, mapped over the batch."""
    from torch.func import functional_call, grad, vmap

    def build() -> tuple[nn.Module, Optimizer]:
        model = perceptron()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Batch, model: nn.Module, optimizer: Optimizer) -> None:
        named = {k: v.detach() for k, v in model.named_parameters()}

        def loss(weights: Any, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(model, weights, (x[None],)), y[None])

        each = vmap(grad(loss), in_dims=(None, 0, 0))(named, batch["x"], batch["y"])
        sizes = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        share = (1.0 / (sizes + 1e-6)).clamp(max=1)
        for name, p in model.named_parameters():
            clipped = torch.einsum("b,b...->...", share, each[name])
            p.grad = (clipped + torch.randn_like(p) * 0.1) / len(batch["x"])
        optimizer.step()

    zoo.holds(build, step, rows())
