"""Whole trainings by the ways that a GPU takes through the code, on the CPU: recorded by one, replayed by the other.

PyTorch operations instead of compiled passes and sums, random words out of integer operations, quotients in float64.
That the ways agree is what a recording on a GPU rests on; whether a GPU's own kernels keep their bounds is for
`test_gpu_replay` to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu import both_ways
from support.recordings import replay_here

from prover.recording import recorder
from weighbridge.numerics.arrays import reductions
from weighbridge.numerics.arrays.physical import flat
from weighbridge.numerics.operations import batch_norm_loops, chains, quotients, sums
from weighbridge.numerics.random import variates
from weighbridge.numerics.rounding import contested, cpu_kernels, cpu_passes, device_passes, narrow
from weighbridge.numerics.rounding.bound import Bound

Tensor = torch.Tensor


def _pass(x: Tensor, bound: Bound, out: Tensor) -> tuple[int, Any, Any, Any]:
    checksum, positions, es = device_passes.record(x, bound, out, cpu_kernels.REACH)
    return checksum, positions.numpy(), flat(x)[positions].numpy(), es.numpy()


def _plain(x: Tensor) -> tuple[Tensor, int]:
    out = torch.empty_strided(x.shape, x.stride())
    return out, device_passes.round_plain(x, out) if x.numel() else 0


def _plain_narrow(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
    out = torch.empty_strided(x.shape, x.stride(), dtype=dtype)
    return out, device_passes.round_plain(x, out) if x.numel() else 0


@contextmanager
def as_on_a_gpu(used: set[str] | None = None) -> Iterator[None]:
    """Within it, the CPU is treated as devices are that compiled code does not reach."""
    seen = set() if used is None else used
    quotient = quotients.evaluate

    def noting(name: str, function: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            seen.add(name)
            return function(*args, **kwargs)

        return noted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_passes, "record", noting("pass", _pass))
        patch.setattr(contested, "round_plain", noting("plain", _plain))
        patch.setattr(narrow, "round_plain", noting("narrow", _plain_narrow))
        for module in (contested, narrow):
            patch.setattr(module, "canonicalise", noting("canonicalise", device_passes.canonicalise))
        patch.setattr(variates, "COMPILED", frozenset())
        for module in (reductions, sums):
            patch.setattr(module, "plan_of", noting("sums", lambda *operands: None))
        patch.setattr(chains, "_plain", noting("chains", lambda *operands: False))
        patch.setattr(recorder, "warm", lambda: None)  # it goes all ways, whatever the training
        patch.setattr(batch_norm_loops, "walks", noting("steps", lambda bound: False))
        patch.setattr(quotients, "evaluate", noting("quotients", lambda op, bound: quotient(op, bound, native=False)))
        yield


def _pair(kind: str, half: bool, *marks: pytest.MarkDecorator) -> Any:
    return pytest.param(kind, half, marks=marks, id=f"{kind}-{'bf16' if half else 'fp32'}")


@pytest.mark.parametrize(
    ("kind", "half"),
    [
        *(_pair("resnet", False), _pair("gpt2", True), _pair("checkpointed", False)),
        *(_pair(kind, kind != "gpt2", pytest.mark.soak) for kind in ("gpt2", "resnet", "lstm", "checkpointed")),
        _pair("lstm", False, pytest.mark.slow),
    ],
)
def test_a_training_recorded_by_either_way_replays_by_the_other(kind: str, half: bool, tmp_path: Path) -> None:
    used: set[str] = set()
    both_ways.record(tmp_path / "compiled", kind, "cpu", half)
    with as_on_a_gpu(used):
        result = replay_here(tmp_path / "compiled")
        assert result["verdict"] == "match", (result["first_difference"], result["findings"])
        both_ways.record(tmp_path / "other", kind, "cpu", half)
    result = replay_here(tmp_path / "other")
    assert result["verdict"] == "match", (result["first_difference"], result["findings"])
    assert used >= {"pass", "plain", "canonicalise", "sums", "chains", "quotients"} | ({"narrow"} if half else set())
    assert ("steps" in used) == (kind == "resnet" and not half)
    compiled, other = (replay_here(tmp_path / name)["state"] for name in ("compiled", "other"))
    assert compiled == other
