"""The product of two matrices by operations that do not look like one, and in an operator of one's own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


@torch.library.custom_op("weighbridge_work::hidden_product", mutates_args=())
def hidden_product(a: Tensor, b: Tensor) -> Tensor:
    """A product inside an operator of the Prover's own, in code that calls nothing of PyTorch's."""
    return torch.from_numpy(a.numpy() @ b.numpy())


def bags(a: Tensor, b: Tensor) -> Tensor:
    """Rows of b, weighted by each row of a, and their sum."""
    return F.embedding_bag(torch.arange(len(b)).repeat(len(a), 1), b, mode="sum", per_sample_weights=a)


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "@": lambda a, b: a @ b,
    "linear": lambda a, b: F.linear(a, b.T),
    "mv": lambda a, b: torch.stack([torch.mv(b.T, row) for row in a]),
    "a product that broadcasts, and a sum": lambda a, b: (a[:, :, None] * b).sum(1),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "bilinear": lambda a, b: F.bilinear(a, a.new_ones(len(a), 1), b.T[:, :, None]),
    "embedding bags": bags,
    "convolution": lambda a, b: F.conv1d(a[:, :, None], b.T[:, :, None])[:, :, 0],
    "an operator whose work is not to be seen": hidden_product,
}
"""Each multiplies an m x k matrix by a k x n one: 2mkn FLOPs."""
