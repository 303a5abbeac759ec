"""Batches of tensors that wrap others are refused before anything of their step is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.recordings import verdict
from torch import Tensor, nn

from prover import Recorder
from weighbridge.core.errors import UsageError


class Wrapper(Tensor):
    """Holds a tensor, as a `DTensor` does."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        made: Wrapper = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        return made

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*(each.inner if isinstance(each, Wrapper) else each for each in args), **(kwargs or {}))


def test_it_is_named_and_the_step_can_be_made_with_what_it_holds(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", seed=1) as recorder:
        with recorder.initialisation():
            model = nn.Linear(4, 2)
        recorder.attach(model)
        batch = {"x": Wrapper(torch.ones(3, 4))}
        refusal = pytest.raises(UsageError, match="x of the batch is a Wrapper, which wraps other tensors")
        with refusal, recorder.step(batch):
            pass
        with recorder.step({"x": batch["x"].inner}):
            model(batch["x"].inner).sum().backward()
    assert verdict(tmp_path / "run") == "match"
