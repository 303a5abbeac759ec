"""Nothing to compute with: batches without rows, experts without tokens, images without boxes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from zoo.machines import Zoo

Tensor = torch.Tensor
NO_INDEX = torch.zeros(0, dtype=torch.long)


class Of(nn.Module):
    """A function of its input, which has a gradient."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.scale)


class Attending(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x)[0]


class Remembering(nn.LSTM):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


ROWS, TOKENS, PLANES = (0, 6), (0, 5, 6), {1: (0, 4, 8), 2: (0, 4, 8, 8), 3: (0, 4, 6, 6, 6)}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}

MODULES: list[tuple[tuple[int, ...], Callable[[], nn.Module]]] = [
    (ROWS, lambda: nn.Linear(6, 3)),
    ((3, 0, 6), lambda: nn.Linear(6, 3)),
    (ROWS, lambda: nn.Linear(6, 0)),
    (TOKENS, lambda: nn.LayerNorm(6)),
    ((2, 0, 6), lambda: nn.LayerNorm(6)),
    (TOKENS, lambda: nn.RMSNorm(6)),
    (PLANES[2], lambda: nn.GroupNorm(2, 4)),
    ((0, 5, 8), lambda: Attending(8, 2, batch_first=True)),
    (TOKENS, lambda: Remembering(6, 4, batch_first=True)),
]  # fmt: skip
for d, shape in PLANES.items():
    MODULES += [
        (shape, lambda d=d: getattr(nn, f"Conv{d}d")(4, 6, 3)),
        (shape, lambda d=d: getattr(nn, f"Conv{d}d")(4, 4, 3, groups=2, padding=1, bias=False)),
        (shape, lambda d=d: getattr(nn, f"ConvTranspose{d}d")(4, 6, 3)),
        (shape, lambda d=d: getattr(nn, f"BatchNorm{d}d")(4)),
        (shape, lambda d=d: getattr(nn, f"BatchNorm{d}d")(4).eval()),
    ]

OPERATIONS: list[tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = [
    *((ROWS, f) for f in (F.gelu, F.silu, F.softplus, F.mish, F.elu, F.logsigmoid, F.normalize, torch.lgamma)),
    *((ROWS, lambda x, f=f, dim=dim: f(x, dim)) for f in (F.softmax, F.log_softmax) for dim in (0, 1)),
    *((ROWS, lambda x, f=f: f(x)) for f in (torch.sum, torch.mean, torch.std, torch.norm)),
    *((ROWS, lambda x, f=f, dim=dim: f(x, dim=dim)) for f in (torch.sum, torch.logsumexp, torch.cumsum, torch.prod)
      for dim in (0, 1)),
    ((3, 0), lambda x: x @ x.t()),
    ((2, 3, 0), lambda x: x @ x.transpose(1, 2)),
    ((0, 3, 4), lambda x: torch.einsum("bij,bkj->bik", x, x)),
    ((3, 0), lambda x: torch.addmm(torch.ones(3, 2), x, torch.ones(0, 2), beta=0.3)),
    ((0, 2, 5, 4), lambda x: F.scaled_dot_product_attention(x, x, x)),
    ((2, 2, 0, 4), lambda x: F.scaled_dot_product_attention(x, x, x)),
    *((ROWS, lambda x, f=f, r=r: f(x, torch.zeros_like(x), reduction=r))
      for f in (F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits)
      for r in ("mean", "sum")),
    *((ROWS, lambda x, r=r: F.cross_entropy(x, NO_INDEX, reduction=r)) for r in ("mean", "sum")),
    (ROWS, lambda x: torch.cdist(x, torch.ones(3, 6))),
    (ROWS, lambda x: torch.zeros(3, 6, dtype=x.dtype).index_add(0, NO_INDEX, x)),
    ((5, 6), lambda x: x[NO_INDEX]),
    ((5, 6), lambda x: x[x > 100]),
    (ROWS, lambda x: x.topk(2, 1)[0]),
    (ROWS, lambda x: F.dropout(x)),
    (ROWS, lambda x: x + torch.randn_like(x)),
    (ROWS, lambda x: torch.lerp(x, x + 1, 0.3)),
    (PLANES[2], lambda x: F.grid_sample(x, torch.zeros(0, 3, 3, 2, dtype=x.dtype), align_corners=False)),
    (PLANES[2], lambda x: F.unfold(x, 3)),
    *((shape, lambda x, d=d, name=name: getattr(F, f"{name}{d}d")(x, 2))
      for d, shape in PLANES.items() for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")),
    *((shape, lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode))
      for d, shape in PLANES.items() for mode in ("nearest", "nearest-exact", LINEAR[d])),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning", r"ignore:std\(\):UserWarning")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_nothing_is_computed_with(zoo: Zoo, precision: str) -> None:
    """PyTorch's kernels take tensors without elements where its descriptions of them (meta kernels) may not."""
    dtype = getattr(torch, precision)
    cases = [*MODULES, *((shape, lambda f=f: Of(f)) for shape, f in OPERATIONS)]
    if precision == "bfloat16":
        cases = [(shape, make) for shape, make in cases if len(shape) != 5]  # which PyTorch's CPU cannot pool

    def build() -> tuple[nn.ModuleList, torch.optim.Optimizer]:
        models = nn.ModuleList(make() for _, make in cases).to(dtype)
        return models, torch.optim.AdamW(models.parameters(), lr=0.1)

    def step(batch: dict[str, Tensor], models: nn.ModuleList, optimizer: torch.optim.Optimizer) -> None:
        for number, model in enumerate(models):
            model(batch[str(number)]).float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    batch = {str(number): torch.ones(shape, dtype=dtype) for number, (shape, _) in enumerate(cases)}
    assert any(not math.prod(shape) for shape, _ in cases)
    zoo.holds(build, step, [batch, batch], policy="strict" if precision == "float32" else "calibrated")
