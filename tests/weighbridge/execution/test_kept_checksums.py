"""A log made on demand that keeps every checksum: the digest of all rounded outputs tells it from the true one."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from support.on_demand import regenerated, resigned
from support.recordings import replay_here, train
from support.tied_rows import ones, ties
from torch import Tensor, nn

from weighbridge.numerics.rounding.cpu_kernels import WEIGHT
from weighbridge.numerics.rounding.rounding_log import OpEntries

ELEMENTS = 120


def batch() -> dict[str, Tensor]:
    """Forty rows whose products with three columns have more admissible values than two."""
    return {"x": torch.cat([ties(seed)["x"] for seed in range(8)])}


def beside(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A product of which nothing follows, so that neither a later result nor the state tells what it was."""
    with torch.no_grad():
        model(batch["x"])
    next(model.parameters()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "run"
    train(path, ones, beside, [batch()], logs="on-demand")
    regenerated(path)
    return path


def balanced() -> tuple[int, ...]:
    """Four elements: the weights of the places of the first two have the sum that those of the others have."""
    weights = [(number * WEIGHT & 0xFFFFFFFF) | 1 for number in range(ELEMENTS)]
    sums: dict[int, tuple[int, int]] = {}
    for a, b in combinations(range(ELEMENTS), 2):
        known = sums.setdefault(weights[a] + weights[b], (a, b))
        if not {a, b} & {*known}:
            return *known, a, b
    raise AssertionError("some sums are the same, as weights are almost multiples of one")


@pytest.mark.parametrize(("count", "operation"), [(0, None), (3, "mm.default"), (4, "outputs")])
def test_elements_that_are_moved_are_found(run: Path, tmp_path: Path, count: int, operation: str | None) -> None:
    """By one unit each, which the bound allows. None, three that change the checksum, and four that keep it."""
    chosen = balanced()[:count]

    def moved(each: OpEntries) -> OpEntries:
        assert (each.positions.tolist(), min(each.widths) > 2) == ([*range(ELEMENTS)], True), "there is a choice"
        bits = each.bits.astype(np.int64)
        bits[list(chosen)] += np.array([1, 1, -1, -1])[:count]
        bits &= (np.int64(1) << each.widths.astype(np.int64)) - 1
        return OpEntries(each.op, each.output, each.positions, each.widths, bits.astype(np.uint64))

    folder = tmp_path / "logs"
    folder.mkdir()
    resigned(run, 1, entries=moved, out=folder / "1.wsup")
    result = replay_here(run, supplements=folder)
    if operation is None:
        assert (result["verdict"], result["logged"]) == ("match", ELEMENTS)
        return
    assert result["verdict"] == "mismatch", result["findings"]
    assert (result["first_difference"]["step"], result["first_difference"]["operation"]) == (1, operation)
    assert {each["id"] for each in result["findings"]} == {"data.not_precommitted", "replay.mismatch"}
