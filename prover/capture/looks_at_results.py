"""Notes where a program looks at what it computes: what it does next may depend on that, and no tape says so."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
_RECORDER = (
    str(Path(__file__).parent),
    str(Path(__file__).parents[1] / "ranks"),
    str(Path(__file__).parents[1] / "recording"),
    str(Path(weighbridge.__file__).parent),
    str(Path(weighbridge.__file__).parent.with_name("firmware_sim")),  # the shim of a simulated chip
)
_OURS = (str(Path(__file__).parents[1]), str(Path(weighbridge.__file__).parent))
_PAST_THE_DISPATCHER = frozenset(
    {
        Tensor.numpy, Tensor.__array__, Tensor.tolist, Tensor.data_ptr, Tensor.untyped_storage, Tensor.storage,
        Tensor.__dlpack__, Tensor.__repr__, Tensor.__format__, Tensor.apply_, Tensor.map_,
    }
)  # fmt: skip
_WITH_HOOKS = frozenset({Tensor.backward, torch.autograd.grad})
"""What PyTorch leaves the mode for, and what calls functions of the program."""


@dataclass(frozen=True, slots=True)
class Given:
    """A number that an operation gave to Python.

    Attributes:
        host: How many the step had given before.
        op: The operation.
        line: Where in the program.
    """

    host: int
    op: int
    line: str


class LooksAtResults(TorchFunctionMode):
    """Notes them while it is entered.

    Attributes:
        first: The line of the first look past the dispatcher, and what looked; None if there was none.
        numbers: The numbers that were given to others than an optimizer of PyTorch's, which only computes with its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first: tuple[str, str] | None = None
        self.numbers: list[Given] = []
        self._random = _randomness()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PAST_THE_DISPATCHER and self.first is None and not _by_recorder() and not _by_optimizer():
            self.first = _line(), getattr(func, "__name__", "a look")
        if func in _WITH_HOOKS:
            with _passes_in(self):
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def read(self, host: int, op: int) -> None:
        """Notes that operation `op` gives Python a number, after so many others."""
        if not _by_optimizer():
            self.numbers.append(Given(host, op, _line()))

    @property
    def drew(self) -> bool:
        """Whether random numbers of Python's or NumPy's were drawn, outside of what a tape has."""
        return _randomness() != self._random


@contextmanager
def _passes_in(mode: TorchFunctionMode) -> Iterator[None]:
    """Lets backward passes run in a mode that PyTorch has left, so that it sees what hooks of the program do."""
    autograd: Any = torch.autograd
    engine = autograd._engine_run_backward

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return engine(*args, **kwargs)

    autograd._engine_run_backward = run
    try:
        yield
    finally:
        autograd._engine_run_backward = engine


def _by_recorder() -> bool:
    """Whether the Recorder or a chip's shim looks itself, as they do in operations of a backward pass."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_RECORDER)


def _by_optimizer() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name in _OPTIMIZERS:
            return True
        if not name.startswith((_TORCH, *_OURS)):
            return False
        frame = frame.f_back
    return False


def _line() -> str:
    place = user_place()
    return "an unknown line" if place is None else text_of(place)


def _randomness() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), *rest
