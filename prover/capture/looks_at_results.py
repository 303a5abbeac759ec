"""Notes where a program looks at what it computes: what it does next may depend on that, and no tape says so."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

import weighbridge
from prover.capture.user_line import text_of, user_place

Tensor = torch.Tensor

_TORCH = str(Path(torch.__file__).parent)
_OPTIMIZERS = tuple(
    str(Path(torch.optim.__file__).with_name(f"{name}.py"))
    for name in ("optimizer", "sgd", "adam", "adamw", "adamax", "adagrad", "adadelta", "rmsprop")
)
_OURS = (str(Path(__file__).parents[1]), str(Path(weighbridge.__file__).parent))
_PAST_THE_DISPATCHER = frozenset(
    {
        Tensor.numpy, Tensor.__array__, Tensor.tolist, Tensor.data_ptr, Tensor.untyped_storage, Tensor.storage,
        Tensor.__dlpack__, Tensor.__repr__, Tensor.__format__,
    }
)  # fmt: skip


class LooksAtResults(TorchFunctionMode):
    """Notes them while it is entered.

    Attributes:
        first: The line of the first look that no optimizer of PyTorch's made, and what looked; None if there was none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first: tuple[str, str] | None = None
        self._random = _randomness()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PAST_THE_DISPATCHER:
            self._unless_optimizer(getattr(func, "__name__", "a look"))
        return func(*args, **(kwargs or {}))

    def read(self) -> None:
        """Notes that an operation gives Python a number: an optimizer of PyTorch's only computes with its own."""
        self._unless_optimizer("a number that was read, as by item(), float() or `if`")

    def _unless_optimizer(self, what: str) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if name in _OPTIMIZERS:
                return
            if not name.startswith((_TORCH, *_OURS)):
                break
            frame = frame.f_back
        if self.first is None:
            place = user_place()
            self.first = "an unknown line" if place is None else text_of(place), what

    @property
    def drew(self) -> bool:
        """Whether random numbers of Python's or NumPy's were drawn, outside of what a tape has."""
        return _randomness() != self._random


def _randomness() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), *rest
