"""What replays say of runs that declare a matrix unit: the findings about it, alone in the report of an inspection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from redteam.inconclusive import committed
from support.exactly import exactly, found
from support.recordings import replay_here, train
from support.written_chips import Bench
from torch import Tensor, nn

from weighbridge.numerics.conformance import probes
from weighbridge.numerics.units import chunked_products, injection

WIDTH, ROWS, SIDE = 4000, 64, 32


def batch() -> dict[str, Tensor]:
    return {"x": torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(4)).abs()}


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(WIDTH, SIDE)
    with torch.no_grad():
        model.weight.abs_()
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        model(batch["x"]).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def recorded(path: Path, has: str, times: int = 1, **patched: Any) -> Path:
    """Records under the policy of H100 what another unit computes, by a Prover who does not test it."""
    with injection.injected(has), pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "require_unit", lambda _: {})
        for name, value in patched.items():
            patch.setattr(injection, name, value)
        batches = [batch()] * times
        train(path, build, step, batches, data=committed(batch()) if times == 1 else None, policy="unit-h100")
    return path


@pytest.mark.finding("replay.unit.false")
def test_a_unit_that_the_device_does_not_have(bench: Bench, tmp_path: Path) -> None:
    honest = recorded(tmp_path / "honest" / "run", "h100")
    assert found(bench.inspected(tmp_path / "honest", bench.at_end(honest))) == set()
    run = recorded(tmp_path / "runs" / "run", "a100")
    report = bench.inspected(tmp_path / "runs", bench.at_end(run))
    exactly(report, "replay.unit.false")
    (finding,) = report["findings"]
    assert finding["severity"] == "violation"
    (snapshot,) = report["chips"][0]["snapshots"]
    assert snapshot["replay"]["verdict"] == "match", "which is why the finding is needed"


class Nearest:
    """A device that does not truncate, and has what a replayer has."""

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return chunked_products.chunked(a, b).sums.float()


@pytest.mark.finding("replay.unit.flips")
def test_flips_that_a_log_lacks_where_few_are_judged(tmp_path: Path) -> None:
    """Some of every product are judged, whatever room there is, and drawn at random: they may see one or not."""

    def about(path: Path) -> set[str]:
        result = replay_here(path, tapes={"unit_terms": 0})
        return {each["id"] for each in result["findings"]} - {"data.not_precommitted"}

    assert about(recorded(tmp_path / "honest", "h100", times=12)) == set()
    run = recorded(tmp_path / "run", "h100", times=12, current=Nearest)
    assert {"replay.unit.flips"} <= about(run) <= {"replay.unit.flips", "replay.unit.false"}
    assert {each["id"] for each in replay_here(run)["findings"]} >= {"replay.unit.false"}
