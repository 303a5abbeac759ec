"""The adaptive threshold: how wide the logged band must be, measured for each kind of module on two machines.

Published: for each layer the smallest band that covers every divergence seen between two devices, found by bisection
between nothing and the whole distance to a boundary. Two values can only be rounded apart if the boundary lies between
them, so the bisection ends at the largest divergence, in units in the last place of float32, which is taken directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from benchmarks.baselines import rounding
from weighbridge.core.errors import LogError

Tensor = torch.Tensor


class Values:
    """Writes every value before rounding to a file, in the order of rounding."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def __call__(self, kind: str, wide: Tensor) -> None:
        """Appends one float64 tensor."""
        self._file.write(wide.contiguous().numpy().tobytes())
        self._file.flush()


class Comparison:
    """Compares every value with what another machine had there.

    Attributes:
        widths: Largest divergence by kind of module, in units in the last place of float32.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.widths: dict[str, float] = {}

    def __call__(self, kind: str, wide: Tensor) -> None:
        """Compares one float64 tensor; raises LogError if the other machine had no value there."""
        theirs = np.frombuffer(self._file.read(8 * wide.numel()), dtype=np.float64)
        if theirs.size != wide.numel():
            raise LogError("the other machine's values end too early; run both for the same steps")
        apart = (wide - torch.from_numpy(theirs.copy()).view(wide.shape)).abs() / rounding.unit(wide)
        finite = apart[torch.isfinite(apart)]
        self.widths[kind] = max(self.widths.get(kind, 0.0), float(finite.max()) if finite.numel() else 0.0)


def pivots(*widths: Mapping[str, float]) -> dict[str, float]:
    """Returns the pivot of each kind of module that covers every divergence measured.

    Args:
        *widths: `Comparison.widths` of one or more runs; the band is at most half a unit on either side of a boundary.
    """
    kinds = {kind for measured in widths for kind in measured}
    return {kind: 0.5 - min(0.5, max(measured.get(kind, 0.0) for measured in widths)) for kind in sorted(kinds)}
