"""A convolutional net with batch norm on scikit-learn's handwritten digits, trained by SGD with momentum.

As a program it records itself: `python -m prover.recipes.digits --out RUN --steps 40`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prover.recipes.program import main
from prover.recipes.recipe import Batch, Training


@lru_cache(maxsize=1)
def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Returns 1797 images (1, 8, 8) with values from 0 to 1, and their labels."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 (of the extra `demo`)

    bunch = load_digits()
    return (bunch.images[:, None] / 16).astype(np.float32), bunch.target.astype(np.int64)


@dataclass(frozen=True)
class Digits:
    """The recipe.

    Attributes:
        width: Channels of the first convolution; the second has twice as many.
        batch_size: Images in a batch.
        device: Device to train on; the data set stays in host memory.
        share: Which records of a batch this process trains on: (first, stride).
    """

    width: int = 16
    batch_size: int = 64
    device: str = "cpu"
    share: tuple[int, int] = (0, 1)
    name: str = "digits"

    def count(self) -> int:
        """Returns the number of records of the data set."""
        return len(_digits()[1])

    def batch(self, ids: Sequence[int]) -> Batch:
        """Returns `{"image": float32 (batch, 1, 8, 8), "label": int64 (batch,)}` of fresh tensors."""
        images, labels = _digits()
        rows = list(ids)
        return {
            "image": torch.tensor(images[rows], device=self.device),
            "label": torch.tensor(labels[rows], device=self.device),
        }

    def build(self) -> Training:
        """Builds the net with fresh weights, SGD with momentum and a constant learning rate."""
        width = self.width
        model = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 10),
        )
        model.to(self.device).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return Training(model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0))

    def formulas(self) -> dict[str, str]:
        """Returns no formulas: no number changes in this training."""
        return {}

    def update(self, training: Training, batch: Batch) -> Tensor:
        """Does one update on the cross-entropy of the labels."""
        loss = nn.functional.cross_entropy(training.model(batch["image"]), batch["label"])
        loss.backward()  # type: ignore[no-untyped-call]
        training.optimizer.step()
        training.optimizer.zero_grad()
        return loss


if __name__ == "__main__":
    main(Digits())
