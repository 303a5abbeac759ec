"""Activations, losses and operations that no other family uses, and what is refused with which advice."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.recordings import train
from torch import nn
from zoo.machines import Zoo
from zoo.material import Batch, descend, real, rows, with_sgd

from weighbridge.core.errors import WeighbridgeError

Tensor = torch.Tensor
Operation = Callable[[Tensor], Tensor]

ACTIVATIONS = """
relu gelu silu mish elu selu celu leaky_relu softplus logsigmoid hardswish hardsigmoid hardtanh relu6 tanhshrink
softshrink hardshrink softsign tanh sigmoid softmax softmin log_softmax
"""

LOSSES: list[Callable[[Tensor, Batch], Tensor]] = [
    lambda h, b: F.l1_loss(h, b["x"][:, :3]),
    lambda h, b: F.smooth_l1_loss(h, b["x"][:, :3]),
    lambda h, b: F.huber_loss(h, b["x"][:, :3]),
    lambda h, b: F.kl_div(h.log_softmax(-1), b["x"][:, :3].softmax(-1), reduction="batchmean"),
    lambda h, b: F.binary_cross_entropy(h.sigmoid(), b["x"][:, :3].sigmoid()),
    lambda h, b: F.cosine_embedding_loss(h, b["x"][:, :3], torch.ones(5)),
    lambda h, b: F.triplet_margin_loss(h, h.flip(0), b["x"][:, :3]),
    lambda h, b: F.gaussian_nll_loss(h, b["x"][:, :3], h.exp()),
    lambda h, b: F.poisson_nll_loss(h, b["x"][:, :3].abs()),
    lambda h, b: F.cross_entropy(h, b["y"], label_smoothing=0.1, weight=torch.tensor([1.0, 2.0, 3.0])),
    lambda h, b: F.cross_entropy(h, b["x"][:, :3].softmax(-1)),
    lambda h, b: F.multilabel_soft_margin_loss(h, (b["x"][:, :3] > 0).float()),
    lambda h, b: F.soft_margin_loss(h, (b["x"][:, :3] > 0) * 2.0 - 1),
    lambda h, b: F.hinge_embedding_loss(h, torch.ones(5, 3)),
    lambda h, b: torch.stack([torch.cdist(h, b["x"][:, :3], p=p).mean() for p in (0, 0.5, 1, 1.5, 2, 3, inf)]).sum(),
    lambda h, b: F.l1_loss(h[torch.cdist(h, b["x"][:, :3], p=1).argmin(0)], b["x"][:, :3]),
    lambda h, b: F.pairwise_distance(h, b["x"][:, :3]).mean(),
]

GRIDS: list[Operation] = [
    lambda h: torch.fake_quantize_per_tensor_affine(h, 0.1, 0, -8, 7),
    lambda h: torch.fake_quantize_per_tensor_affine(h, h.detach().abs().max() / 8, torch.zeros(1).int(), -8, 7),
    lambda h: torch.fake_quantize_per_channel_affine(h, h.detach().abs().amax(0) / 8, torch.zeros(3).int(), 1, -8, 7),
]

ORDER: list[Operation] = [
    lambda h: h.sort(1)[0] * torch.arange(3),
    lambda h: h.topk(2, 1)[0],
    lambda h: h.kthvalue(2, 1)[0],
    lambda h: h.median(1)[0] + h.median(),
    lambda h: h.cumsum(0) + h.cumprod(1),
    lambda h: h.logsumexp(1) + h.amax(1) + h.amin(1) + h.max(1)[0],
    lambda h: (
        h[torch.unique(torch.tensor([1, 3, 1]))] * torch.unique(torch.tensor([2, 0]), return_inverse=True)[1][:, None]
    ),
    lambda h: h[torch.searchsorted(torch.tensor([1.0, 2.0]), torch.tensor([1.5]))],
    lambda h: h * torch.histc(h.detach(), 3).sum() + torch.bincount(torch.tensor([0, 1, 1]))[:, None].sum(),
]

SHAPES: list[Operation] = [
    lambda h: F.unfold(h[None, None], 2),
    lambda h: F.fold(h.T[None, :1].expand(1, 4, 5)[:, :, :4].contiguous(), (3, 3), 2),
    lambda h: F.pad(h[None], (1, 1), mode="reflect") + F.pad(h[None], (1, 1), mode="replicate"),
    lambda h: F.max_pool1d(h[:, None], 2) + F.avg_pool1d(h[:, None], 2),
    lambda h: F.adaptive_max_pool1d(h[:, None], 2) + F.adaptive_avg_pool1d(h[:, None], 2),
    lambda h: F.interpolate(h[None], scale_factor=2, mode="linear") + F.interpolate(h[None], scale_factor=2),
    lambda h: F.grid_sample(h[None, None], torch.linspace(-1.2, 1.2, 8).view(1, 2, 2, 2), align_corners=False),
    lambda h: F.pixel_shuffle(h[:4, :1].reshape(1, 4, 1, 1), 2),
    lambda h: F.instance_norm(h[:, None]) + F.batch_norm(h, None, None, training=True)[:, None],
    lambda h: F.rms_norm(h, (3,)) + F.local_response_norm(h[:, :, None], 2)[..., 0],
    lambda h: F.conv3d(h[:1, None, None, None], h[:1, None, None, None, :2]),
    lambda h: F.conv2d(h[None, None], h[None, None, :2, :2], padding="valid") + F.avg_pool2d(h[None], (2,), (1,)),
    lambda h: torch.kron(h[:2], h[:2]) + h[:2].repeat_interleave(2, 0).tile(1, 3)[:, :9],
    lambda h: (
        torch.zeros(5, 3).index_copy(0, torch.tensor([1, 1, 2]), h[:3])
        + torch.zeros(5, 3).put(torch.tensor([2, 2]), h[0, :2])
    ),
    lambda h: torch.take(h, torch.tensor([0, 0, 4])) * 2,
    lambda h: h.diff() + torch.trapezoid(h)[:, None] + h[:3].trace() + h.diagonal().sum(),
]

PRODUCTS: list[Operation] = [
    lambda h: torch.einsum("bi,bj->ij", h, h) + torch.cov(h.T) + torch.corrcoef(h.T),
    lambda h: torch.linalg.cross(h, h.flip(1)) + F.bilinear(h, h, torch.ones(3, 3, 3)),
    lambda h: torch.addbmm(torch.zeros(3, 3), h[:, :, None], h[:, None]) + torch.linalg.multi_dot([h.T, h, h.T, h]),
    lambda h: torch.atan2(h, h.flip(0)) + torch.hypot(h, h + 1) + h.sinc() + h.sigmoid().logit() + h.expm1(),
    lambda h: h.abs().add(0.1).pow(1.5) + (h.abs() + 0.1).rsqrt() + (h.tanh() * 0.9).erfinv() + torch.xlogy(h, h.exp()),
    lambda h: (
        torch.lerp(h, h * 2, 0.3) + torch.addcmul(h, h, h, value=0.3) + torch.addcdiv(h, h, h.abs() + 1, value=0.1)
    ),
    lambda h: h.std(1) + torch.var_mean(h, 1)[0] + h.norm(dim=1) + h.norm(p=1) + F.cosine_similarity(h, h.flip(0)),
    lambda h: (
        h.detach() // 0.3 * h + h % 0.7 + h.fmod(h.detach().abs() + 0.1) + torch.div(h, 0.2, rounding_mode="trunc") * h
    ),
    lambda h: h * (torch.arange(3, dtype=torch.float64) / 7).div_(torch.tensor(3.0, dtype=torch.float64)).float(),
    lambda h: h.quantile(0.5) + h.nanmean() + h.clamp(max=h.detach().mean()).sum() + h.prod(1).sum(),
]


def spread(h: Tensor) -> Tensor:
    """A matrix that is safe to invert, from the model's output."""
    return h[:3] + 5 * torch.eye(3)


MATRICES: list[Operation] = [
    lambda h: torch.linalg.inv(spread(h)) + torch.linalg.solve(spread(h), h[:3]),
    lambda h: torch.linalg.det(spread(h)) + torch.linalg.slogdet(spread(h))[1],
    lambda h: torch.linalg.cholesky(h[:3] @ h[:3].T + torch.eye(3)),
    lambda h: torch.linalg.solve_triangular(spread(h).triu(), h[:3], upper=True),
    lambda h: torch.linalg.qr(h)[0] + torch.linalg.qr(h)[1].sum(),
    lambda h: torch.linalg.inv(spread(h).expand(2, 3, 3)),
]


def total(operations: list[Operation]) -> Callable[[Tensor, Batch], Tensor]:
    """Adds up what operations make of the model's output."""

    def loss(h: Tensor, batch: Batch) -> Tensor:
        return torch.stack([operation(h).mean() for operation in operations]).sum() + h.square().mean()

    return loss


def activation(name: str) -> Operation:
    """The activation of that name; the three that normalise do so along the last dimension."""
    options = {"dim": -1} if name in ("softmax", "softmin", "log_softmax") else {}
    return lambda h: getattr(F, name)(h, **options)


FAMILIES = {
    "activations": total(
        [
            *map(activation, ACTIVATIONS.split()),
            lambda h: F.gelu(h, approximate="tanh"),
            lambda h: F.prelu(h, h.detach()[0, :1].abs()),
            lambda h: F.glu(torch.cat([h, h], -1)),
        ]
    ),
    "losses": lambda h, batch: torch.stack([loss(h, batch) for loss in LOSSES]).sum(),
    "order": total(ORDER),
    "shapes": total(SHAPES),
    "products": total(PRODUCTS),
    "matrices": total(MATRICES),
    "grids": total(GRIDS),
}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_operations(zoo: Zoo, family: str) -> None:
    zoo.holds(with_sgd, descend(FAMILIES[family]), rows(2), every=1)
    zoo.trains_as_without(with_sgd, descend(FAMILIES[family]), rows(2))


REFUSED: dict[str, tuple[Operation, str]] = {
    "remainder": (lambda h: (h + 1e10) % 1.0, "use integers"),
    "complex": (lambda h: torch.polar(h.abs(), h).real, "real and imaginary parts"),
    "complex type": (lambda h: h.to(torch.complex64).real, "real and imaginary parts"),
    "least squares": (lambda h: torch.linalg.lstsq(h, h).solution, "linalg.qr"),
    "running": (lambda h: h.logcumsumexp(0), "cumsum"),
    "sparse": (lambda h: torch.sparse_coo_tensor(torch.tensor([[0, 1]]), h[0, :2], (3,)).to_dense(), "sparse=False"),
    "svd": (torch.linalg.svdvals, "use torch.linalg.qr or power iteration"),
    "eigenvalues": (lambda h: torch.linalg.eigvalsh(spread(h)), "use torch.linalg.qr or power iteration"),
    "fourier": (lambda h: torch.fft.rfft(h).abs(), "sines and cosines"),
    "bags": (lambda h: F.embedding_bag(torch.tensor([[0, 1]]), h, mode="max"), "use nn.Embedding"),
    "gamma function": (torch.lgamma, "softplus"),
    "digamma": (torch.digamma, "softplus"),
    "matrix exponential": (lambda h: torch.linalg.matrix_exp(h[:3]), "sum the series"),
    "products by place": (
        lambda h: torch.ones(2, 3).scatter_reduce(0, torch.zeros(5, 3, dtype=torch.int64), h, "prod"),
        "add logarithms",
    ),
    "pairs": (lambda h: F.pdist(h, p=1.0), r"norm\(p, -1\)"),
    "float to integer": (lambda h: h * (h / 0).to(torch.int64), "clamp it first"),
    "float64": (lambda h: h.double().exp(), "compute in float32"),
    "singular matrix": (lambda h: torch.linalg.inv(h[:3] * 0), "add a multiple of the identity"),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_refused_says_what_to_write_instead(tmp_path: Path, name: str) -> None:
    operation, advice = REFUSED[name]
    with pytest.raises(WeighbridgeError, match=advice) as caught:
        train(tmp_path / "run", with_sgd, descend(lambda h, batch: operation(h).sum()), rows(1))
    assert "test_zoo_operations.py" in str(caught.value.details["line"])


def test_a_transformer_by_hand(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu")
        model = nn.Sequential(nn.Linear(6, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    step = descend(lambda h, batch: F.mse_loss(h, h.detach().roll(1, 1)))
    zoo.holds(build, step, [{"x": real(2, 4, 6, seed=i)} for i in range(2)])


RUNNING: list[Operation] = [
    lambda h: h.cummax(0)[0] + h.cummin(1)[0],
    lambda h: h.index_reduce(0, torch.tensor([1, 1, 3]), h[:3] * 2, "mean"),
    lambda h: torch.cholesky_solve(h[:3], torch.linalg.cholesky(h[:3] @ h[:3].T + torch.eye(3))),
    lambda h: torch.addr(h[:3], h[0], h[1], alpha=0.3) + torch.rot90(h[:3]) + torch.deg2rad(h[:3]),
    lambda h: F.max_unpool2d(*F.max_pool2d(h[None, None, :4, :2], 2, return_indices=True), 2),
    lambda h: F.channel_shuffle(h[None, :4], 2) * torch.logspace(-1, 0, 3),
    lambda h: F.embedding(torch.tensor([0, 2, 2]), h.detach() * 9, max_norm=1.0) * h[:3],
    lambda h: torch.add(h.detach(), 1, out=torch.empty(5, 3)) * torch.arange(3, out=torch.empty(3)) * h,
    lambda h: torch.tril(h.detach(), out=torch.empty(3, 5).T) * torch.linspace(0, 1, 3, out=torch.empty(3)) * h,
    lambda h: torch.pdist(h) + h[torch.allclose(h, h) * 1].sum(),
]


@pytest.mark.filterwarnings(r"ignore:index_reduce\(\) is in beta:UserWarning")
def test_shorthands(zoo: Zoo) -> None:
    zoo.holds(with_sgd, descend(total(RUNNING)), rows(2), every=1)
    zoo.trains_as_without(with_sgd, descend(total(RUNNING)), rows(2))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
def test_parameters_without_elements(zoo: Zoo) -> None:
    """An adaptive softmax makes its last projection narrower than one column."""

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.AdaptiveLogSoftmaxWithLoss(6, 12, [4, 8])
        assert any(p.numel() == 0 for p in model.parameters())
        return model, torch.optim.AdamW(model.parameters())

    def step(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(batch["x"], batch["y"] * 5).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(build, step, rows(2), every=1)
