"""Probabilistic bounds: what they are, what they save, and that runs under them replay elsewhere and attacks do not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.noted_bounds import bounds
from support.recordings import train
from torch import nn

from weighbridge.core.bound_failure import SPREAD, false_accusation
from weighbridge.execution.replay import replay
from weighbridge.numerics.bounds import U, gamma, probable_growth
from weighbridge.numerics.rounding import contested
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.transcript.reader import Transcript

aten = torch.ops.aten
WIDTH = 1024
Batch = dict[str, torch.Tensor]


def probable(n: float) -> float:
    with probable_growth():
        return gamma(n)


@given(st.integers(1, 2**40))
def test_they_are_never_larger_than_strict_ones_and_cover_the_constants_of_rules(n: int) -> None:
    """Rules count up to 64 units of functions' errors as roundings; those may all have one sign."""
    assert probable(n) <= gamma(n)
    if probable(n) < gamma(n):
        assert probable(n) >= (SPREAD * math.sqrt(max(0, n - 64)) + 64) * U * (1 - 1e-9)


def test_they_grow_with_the_root_of_the_number_of_terms() -> None:
    assert probable(256) == gamma(256)
    assert probable(1 << 22) / probable(1 << 20) == pytest.approx(2, rel=0.01)
    assert gamma(1 << 20) / probable(1 << 20) > 60


@pytest.mark.parametrize("terms", [1 << 10, 1 << 14, 1 << 16])
@pytest.mark.parametrize("kind", ["normal", "uniform", "one sign"])
def test_errors_of_float32_lie_within_those_of_its_unit(terms: int, kind: str) -> None:
    """Sums of products one after the other in float32, the worst order that libraries have, against float64."""
    generator = torch.Generator().manual_seed(terms)
    a, b = torch.randn(2, 16, terms, generator=generator)
    a, b = {"normal": (a, b), "uniform": (a.sigmoid() - 0.5, b), "one sign": (a.abs(), b.abs())}[kind]
    exact = (a.double() * b.double()).sum(1)
    found = torch.from_numpy(np.cumsum((a * b).numpy(), axis=1, dtype=np.float32)[:, -1])
    bound = probable(terms) * 2.0**29 * a.double().norm(dim=1) * b.double().norm(dim=1)
    assert float(((found.double() - exact).abs() / bound).max()) < 0.6


def test_sums_are_the_only_results_with_smaller_bounds_and_16_bits_have_calibrated_ones() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(4, 4096), torch.randn(4096, 3)
    strict, found = bounds("strict", aten.mm.default, x, w), bounds("probabilistic", aten.mm.default, x, w)
    assert float((found / strict).max()) < 0.3
    assert torch.equal(bounds("strict", aten.exp.default, x), bounds("probabilistic", aten.exp.default, x))
    half = x.bfloat16(), w.bfloat16()
    assert torch.equal(bounds("calibrated", aten.mm.default, *half), bounds("probabilistic", aten.mm.default, *half))


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
    optimizer.step()
    optimizer.zero_grad()


def rows() -> list[Batch]:
    generator = torch.Generator().manual_seed(4)
    return [
        {"x": torch.randn(512, WIDTH, generator=generator), "y": torch.randint(4, (512,), generator=generator)}
        for _ in range(2)
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("probabilistic") / "run"
    train(path, build, step, rows(), policy="probabilistic")
    return path


def test_a_run_replays_on_another_instruction_set_and_says_what_it_rests_on(run: Path) -> None:
    result = replay(run, env={"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"})
    assert result.verdict == "match"
    assert result.probable == result.rounded > 0
    assert result.calibrated == 0
    assert result.to_json()["false_accusation"] == result.false_accusation == false_accusation(result.probable) > 0


def test_its_log_is_smaller_than_under_strict_bounds(run: Path, tmp_path: Path) -> None:
    train(tmp_path / "strict", build, step, rows(), policy="strict")
    logged = {
        path: sum(record.logged for record in Transcript.open(path).records()) for path in (run, tmp_path / "strict")
    }
    assert 0 < logged[run] < logged[tmp_path / "strict"]


def test_a_prover_may_choose_less_than_under_strict_bounds() -> None:
    """An element between both bounds from a boundary: under strict bounds its log chooses the side, under these not."""
    terms = 1 << 20
    boundary, strict, found = 1 + 2.0**-24, gamma(terms), probable(terms)
    away = math.sqrt(strict * found)
    lie = contested.record(torch.tensor([boundary - away], dtype=torch.float64), Bound(rel=strict), 0, 0)
    honest = torch.tensor([boundary + away], dtype=torch.float64)
    assert contested.follow(honest, Bound(rel=strict), lie.entries).followed == 1
    assert contested.follow(honest, Bound(rel=found), lie.entries).inadmissible == 1
