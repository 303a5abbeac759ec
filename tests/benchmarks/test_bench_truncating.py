"""The power of a sample of judged elements, as it is computed, against samples that are drawn."""

from __future__ import annotations

import pytest
import torch

from benchmarks import bench_truncating
from benchmarks.bench_truncating import power
from weighbridge.execution.unit_adjudication import Drawn


def test_power_is_what_samples_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_truncating, "SUPPRESSED", 2)
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(400, generator=generator, dtype=torch.float64) ** 3 + 1 / 256
    flips = torch.rand(400, generator=generator, dtype=torch.float64) < weights / 4
    places = flips.nonzero().flatten()
    seen = 0
    for _ in range(4000):
        chosen = places[torch.randperm(len(places), generator=generator)[:2]]
        sample = torch.multinomial(weights, 30, replacement=False, generator=generator)
        seen += bool(torch.isin(chosen, sample).any())
    parts = [Drawn(weights[:150], flips[:150]), Drawn(weights[150:], flips[150:])]
    assert power(parts, 30) == pytest.approx(seen / 4000, abs=0.03)
    assert power(parts, 400) == 1.0
