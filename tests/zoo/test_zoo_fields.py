"""Functions of a few numbers: fields of light, differential equations, splines, learned offsets, bags of words."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from zoo.machines import Zoo
from zoo.material import real, whole
from zoo.test_zoo_attention import adamw, minimise

Tensor = torch.Tensor


class Field(nn.Module):
    """Density and colour along rays, from sines and cosines of places, composed from front to back."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(27, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.density, self.colour = nn.Linear(16, 1), nn.Sequential(nn.Linear(19, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, origin: Tensor, direction: Tensor, y: Tensor) -> Tensor:
        edges = torch.linspace(0.1, 2.0, 9)
        depth = edges[:-1] + torch.rand(len(origin), 8) * (edges[1:] - edges[:-1])
        direction = F.normalize(direction, dim=-1)
        points = origin[:, None] + depth[..., None] * direction[:, None]
        scaled = points[..., None] * (2.0 ** torch.arange(4) * math.pi)
        h = self.body(torch.cat([points, scaled.sin().flatten(-2), scaled.cos().flatten(-2)], -1))
        sigma = F.relu(self.density(h)[..., 0])
        rgb = torch.sigmoid(self.colour(torch.cat([h, direction[:, None].expand(-1, 8, 3)], -1)))
        gap = torch.cat([depth.diff(dim=-1), torch.full((len(origin), 1), 1e3)], -1)
        alpha = 1 - torch.exp(-sigma * gap)
        passed = torch.cumprod(torch.cat([torch.ones(len(origin), 1), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        return F.mse_loss(((alpha * passed)[..., None] * rgb).sum(1), y)


def test_a_field_of_light(zoo: Zoo) -> None:
    batches = [
        {"origin": real(6, 3, seed=i), "direction": real(6, 3, seed=i + 9), "y": real(6, 3, seed=i).sigmoid()}
        for i in range(2)
    ]
    zoo.holds(adamw(Field), minimise, batches)


class Flow(nn.Module):
    """A differential equation, by Euler and by Heun, its divergence by the derivative along a random direction."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        mass, h = torch.zeros(len(x)), 0.25
        along = torch.randint(0, 2, x.shape).float() * 2 - 1
        for number in range(4):
            t = torch.full((len(x), 1), number * h)
            k = self.slope(torch.cat([x, t], -1))
            (grad,) = torch.autograd.grad((k * along).sum(), x, create_graph=True)
            mass = mass + h * (grad * along).sum(-1)
            later = self.slope(torch.cat([x + h * k, t + h], -1))
            x = x + h * (k + later) / 2
        return (0.5 * x.square().sum(-1) - mass).mean()


def test_a_differential_equation(zoo: Zoo) -> None:
    zoo.holds(adamw(Flow), minimise, [{"x": real(5, 2, seed=i)} for i in range(2)])


class Splines(nn.Module):
    """A layer whose every edge is a cubic spline on a grid (Cox and de Boor) beside a SiLU."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2.2, 2.2, 12).repeat(n, 1))
        self.base, self.weight = nn.Linear(n, m), nn.Parameter(torch.randn(m, n, 8) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        grid: Tensor = self.grid  # type: ignore[assignment]
        z = x[..., None]
        bases = ((z >= grid[:, :-1]) & (z < grid[:, 1:])).to(x.dtype)
        for k in range(1, 4):
            left = (z - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)]) * bases[..., :-1]
            right = (grid[:, k + 1 :] - z) / (grid[:, k + 1 :] - grid[:, 1:-k]) * bases[..., 1:]
            bases = left + right
        return self.base(F.silu(x)) + torch.einsum("bik,oik->bo", bases, self.weight)


class Regress(nn.Module):
    """Splines of splines onto a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Splines(3, 4), Splines(4, 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.smooth_l1_loss(self.layers(x)[:, 0], y)


def test_splines_on_edges(zoo: Zoo) -> None:
    batches = [{"x": real(6, 3, seed=i), "y": real(6, seed=i + 4)} for i in range(2)]
    zoo.holds(adamw(Regress), minimise, batches)


class Deformable(nn.Module):
    """A convolution that decides where it looks: bilinear samples at learned offsets, gathered by index."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.weight, self.out = nn.Conv2d(2, 18, 3, padding=1), nn.Linear(18, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        b, c, high, wide = x.shape
        offset = self.where(x).view(b, 9, 2, high, wide)
        rows, columns = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
        kernel = torch.cartesian_prod(torch.arange(-1, 2), torch.arange(-1, 2))
        at_row = rows + kernel[:, 0, None, None] + offset[:, :, 0]
        at_column = columns + kernel[:, 1, None, None] + offset[:, :, 1]
        top, left = at_row.floor(), at_column.floor()
        total = 0
        flat = x.flatten(2)
        for down in (0, 1):
            for right in (0, 1):
                r, q = top + down, left + right
                share = (1 - (at_row - r).abs()) * (1 - (at_column - q).abs())
                inside = (r >= 0) & (r < high) & (q >= 0) & (q < wide)
                index = (r.clamp(0, high - 1) * wide + q.clamp(0, wide - 1)).long().flatten(1)
                picked = flat.gather(2, index[:, None].expand(-1, c, -1)).view(b, c, 9, high, wide)
                total = total + picked * (share * inside)[:, None]
        h = self.weight(total.flatten(1, 2).movedim(1, -1))
        return F.cross_entropy(self.out(F.hardswish(h)).mean((1, 2)), y)


def test_learned_offsets(zoo: Zoo) -> None:
    batches = [{"x": real(2, 2, 4, 5, seed=i), "y": whole(3, 2, seed=i)} for i in range(2)]
    zoo.holds(adamw(Deformable), minimise, batches)


class Bags(nn.Module):
    """Sums and means of word vectors by bag, by hand and by EmbeddingBag, and distances between bags."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.bag = nn.Embedding(20, 6), nn.EmbeddingBag(20, 6, mode="mean", padding_idx=3)
        self.out = nn.Linear(6, 4)

    def forward(self, words: Tensor, bags: Tensor) -> Tensor:
        total = torch.zeros(6, 6).index_add(0, bags, self.embed(words))
        count = torch.bincount(bags, minlength=6).clamp(min=1)
        starts = torch.arange(0, 15, 3)[:5]
        weighed = F.embedding_bag(words, self.embed.weight, starts, mode="sum", per_sample_weights=words.float())
        h = self.out(total / count[:, None] + self.bag(words, starts).mean(0) + weighed.tanh().mean(0))
        near, far = h[0::3], h[1::3]
        margins = F.triplet_margin_loss(h[2::3], near, far, margin=0.5) + F.margin_ranking_loss(
            near[:, 0], far[:, 0], torch.ones(2), margin=0.1
        )
        everyone = torch.cdist(h, h) + torch.eye(6) * 10
        return margins + everyone.min(1).values.clamp(max=1).mean() + torch.pdist(h).mean()


def test_bags_of_words(zoo: Zoo) -> None:
    batches = [{"words": whole(20, 15, seed=i), "bags": whole(6, 15, seed=i)} for i in range(2)]
    zoo.holds(adamw(Bags), minimise, batches)
