"""The default policy: strict bounds for float32, calibrated ones for 16 bits, in one run; neither side chooses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.forging import forge
from support.noted_bounds import bounds
from support.recordings import replay_here, train
from torch import nn

from weighbridge.core.errors import WeighbridgeError

aten = torch.ops.aten


CALLS = [
    (aten.mm.default, (4, 64), (64, 3)),
    (aten.sum.dim_IntList, (4, 300), [1]),
    (aten._softmax.default, (4, 30), 1, False),
    (aten.exp.default, (50,)),
]


def operands(call: tuple[Any, ...], dtype: torch.dtype) -> list[Any]:
    torch.manual_seed(0)
    return [(torch.rand(a) ** 30).to(dtype) if isinstance(a, tuple) else a for a in call[1:]]  # no sum is exact


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call[0]))
def test_types_alone_say_which_bounds_hold(call: tuple[Any, ...]) -> None:
    single, half = operands(call, torch.float32), operands(call, torch.bfloat16)
    assert torch.equal(bounds("mixed", call[0], *single), bounds("strict", call[0], *single))
    assert torch.equal(bounds("mixed", call[0], *half), bounds("calibrated", call[0], *half))
    assert not torch.equal(bounds("mixed", call[0], *single), bounds("calibrated", call[0], *single))


def test_what_is_computed_in_float64_has_strict_bounds_whatever_its_operands() -> None:
    x = operands(CALLS[1], torch.bfloat16)[0]
    summed = bounds("mixed", aten.sum.dim_IntList, x, [1], False, dtype=torch.float32)
    # Both are float64 sums of magnitudes, whose order depends on how memory is aligned.
    torch.testing.assert_close(summed, bounds("strict", aten.sum.dim_IntList, x.float(), [1]), rtol=1e-12, atol=0)


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(12, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def step(batch: Mapping[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.functional.cross_entropy(model(batch["x"]).float(), batch["y"]).backward()
    optimizer.step()
    optimizer.zero_grad()


def autocast(batch: Mapping[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step(batch, model, optimizer)


def forged(source: Path, target: Path, **drafted: Any) -> Path:
    return forge(source, target, lambda *_: None, **drafted)


def rows() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(4)
    draw = {"generator": generator}
    return [{"x": torch.rand(8, 12, **draw), "y": torch.randint(4, (8,), **draw)} for _ in range(3)]  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "run"
    train(path, build, step, rows())
    return path


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("half") / "run"
    train(path, build, autocast, rows())
    return path


def test_float32_rests_on_strict_bounds_alone(plain: Path) -> None:
    result = replay_here(plain)
    assert (result["verdict"], result["calibrated"]) == ("match", 0)
    assert result["rounded"] > 0


def test_the_verdict_says_how_much_rests_on_calibrated_bounds(half: Path) -> None:
    result = replay_here(half)
    assert result["verdict"] == "match"
    assert 0 < result["calibrated"] < result["rounded"], "autocast computes some in 16 bits, the optimizer in float32"


def test_a_table_that_is_not_here_stops_only_what_needs_it(plain: Path, half: Path, tmp_path: Path) -> None:
    without = forged(plain, tmp_path / "plain", calibration="0" * 64)
    assert replay_here(without)["verdict"] == "match"
    with pytest.raises(WeighbridgeError) as caught:
        replay_here(forged(half, tmp_path / "half", calibration="0" * 64))
    assert caught.value.reason == "replay.calibration.unknown"


def test_16_bits_cannot_pass_for_strict_ones(half: Path, tmp_path: Path) -> None:
    """A Prover who wants its report to say "strict" has no bounds for what it computed."""
    result = replay_here(forged(half, tmp_path / "run", policy="strict", calibration=""))
    assert (result["verdict"], result["findings"][0]["id"]) == ("mismatch", "tape.forbidden")


def test_float32_cannot_take_the_wider_of_two_bounds(plain: Path, tmp_path: Path) -> None:
    """Outcomes that another policy would admit are judged by the one that the types say."""
    strict = replay_here(forged(plain, tmp_path / "strict", policy="strict", calibration=""))
    mixed = replay_here(plain)
    same = ("verdict", "rounded", "logged", "followed")
    assert [strict[name] for name in same] == [mixed[name] for name in same]
    counted = ("rounded", "entries", "overruled")  # the others follow float64 sums, in the order of memory's alignment
    assert [strict["evidence"][name] for name in counted] == [mixed["evidence"][name] for name in counted]
