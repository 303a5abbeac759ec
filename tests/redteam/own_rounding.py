"""An adversary in the place of the Recorder's rounding: it chooses results, and what the rounding log says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from prover.capture import recording_context
from weighbridge.numerics.arrays import physical
from weighbridge.numerics.rounding import formats
from weighbridge.numerics.rounding.contested import Rounded
from weighbridge.numerics.rounding.rounding_log import OpEntries


class _Replaced:
    """A module of contested roundings with another `record`."""

    def __init__(self, module: ModuleType, record: Callable[..., Rounded]) -> None:
        self._module, self.record = module, record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@contextmanager
def rounding_by(module: ModuleType, record: Callable[..., Rounded]) -> Iterator[None]:
    """Has results rounded by `record`, which stands in the place of `contested.record` or `narrow.record`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording_context, module.__name__.rpartition(".")[2], _Replaced(module, record))
        yield


def chosen(found: Rounded, places: npt.NDArray[np.int64], values: torch.Tensor, entries: OpEntries | None) -> Rounded:
    """The result with chosen values at some places, and what its log says; the run goes on from there."""
    out = physical.flat(found.out)
    out[torch.from_numpy(places)] = values
    return replace(found, checksum=formats.checksum(out), entries=entries)


def low_bits(integers: npt.NDArray[np.int64], widths: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """What entries of some widths hold of ordered integers."""
    masked: npt.NDArray[np.uint64] = (integers & ((np.int64(1) << widths.astype(np.int64)) - 1)).astype(np.uint64)
    return masked
