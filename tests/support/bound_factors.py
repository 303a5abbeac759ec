"""Factors of bounds that are products: small positive numbers, in each layout that the rounding passes tell apart."""

from __future__ import annotations

import numpy as np
import torch

LAYOUTS = ("rows", "columns", "transposed", "bias", "general")


def positive(rng: np.random.Generator, *size: int) -> torch.Tensor:
    """Returns numbers between 0 and 2^-20 of many magnitudes, float64."""
    return torch.from_numpy(rng.random(size) * 2.0 ** rng.integers(-40, -20))


def factors(layout: str, shape: tuple[int, int, int], rng: np.random.Generator) -> tuple[torch.Tensor, ...]:
    """Returns the factors of a bound on a result of some shape."""
    b, r, c = shape
    return {
        "rows": (positive(rng, b, r, 1), positive(rng, b, 1, c)),
        "columns": (positive(rng, 1, 1, c), positive(rng, b, r, 1)),
        "transposed": (positive(rng, c, r, b).permute(2, 1, 0)[:, :, :1], positive(rng, c, b).t().unsqueeze(1)),
        "bias": (positive(rng, r, 1),),
        "general": (positive(rng, b, r, c), positive(rng, b, r, c)),
    }[layout]
