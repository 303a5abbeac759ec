"""Random numbers made to order: what a Prover chooses of where generators start is in the ledger, bit for bit.

That a run which chose too much is accused is a row of the catalogue (`redteam.counters`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from redteam.counters import number
from support.forging import rewrite
from support.recordings import replay_here, train
from torch import Tensor, nn

from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord

SEED = 7
WEIGHTS = 48


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of a row of weights."""
    model = nn.Linear(WEIGHTS, 1, bias=False)
    return model, torch.optim.SGD(model.parameters(), lr=0.0)


def chosen_in(path: Path, steps: tuple[int, int] | None = None) -> float:
    """Bits in the ledger of a replay, which must match: those that starts of generators brought in."""
    return _ledger(replay_here(path, steps=steps))


def _ledger(result: dict[str, Any]) -> float:
    assert result["verdict"] == "match", result["first_difference"]
    entry = result["chosen"].get("generators")
    return entry["bits"] if entry else 0.0


def one_at_a_time(wanted: list[int]) -> Callable[..., None]:
    """Each step draws one weight and lets it in at the end of the row, by the same program."""
    left = iter(wanted)

    def step(batch: Tensor, model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            drawn = number(torch.Generator().manual_seed(next(left)))
            model.weight.copy_(torch.cat([model.weight[0, 1:], drawn])[None])

    return step


def test_numbers_of_64_bits(tmp_path: Path) -> None:
    """Whoever searches further needs longer numbers, and is charged for them."""
    words = [int(word) for word in np.random.default_rng(5).integers(1 << 63, size=8)]
    train(tmp_path / "run", build, one_at_a_time(words), [torch.zeros(1)] * 8, seed=SEED)
    assert chosen_in(tmp_path / "run") >= 8 * 63


def test_seeds_between_steps_leave_no_trace_on_the_tapes(tmp_path: Path) -> None:
    """Dropout's masks chosen in each step: programs are those of the honest run, and only starts differ."""
    seeds = np.random.default_rng(6).integers(1 << 40, size=6).tolist()

    def chosen(batch: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        torch.manual_seed(seeds.pop())
        _dropout(batch, model, optimizer)

    batches = [torch.ones(2, WEIGHTS)] * 6
    train(tmp_path / "honest", build, _dropout, batches, seed=SEED)
    train(tmp_path / "chosen", build, chosen, batches, seed=SEED)
    tapes = [[r.tape for r in Transcript.open(tmp_path / name).records()] for name in ("honest", "chosen")]
    assert tapes[0] == tapes[1]
    assert chosen_in(tmp_path / "honest") == 0
    assert chosen_in(tmp_path / "chosen") >= 6 * 40


def test_a_counter_edited_in_a_record_is_charged_by_the_replay_of_another_segment(tmp_path: Path) -> None:
    """The replay of the step itself differs. That of a later one does not see it, and charges it."""
    train(tmp_path / "run", build, _dropout, [torch.ones(2, WEIGHTS)] * 4, seed=SEED, every=2)
    odd = 0x9E3779B97F4A7C15

    def edit(record: StepRecord) -> StepRecord:
        moved = {name: (before + odd, after + odd) for name, (before, after) in record.rng.items()}
        return replace(record, rng=moved) if record.step == 1 else record

    rewrite(tmp_path / "run", edit)
    assert replay_here(tmp_path / "run", steps=(1, 2))["verdict"] == "mismatch"
    assert chosen_in(tmp_path / "run", steps=(3, 5)) >= 64


def _dropout(batch: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.functional.dropout(model(batch), 0.5).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
