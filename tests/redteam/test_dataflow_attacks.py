"""Content that is put in the place of weights, by every way around the data flow of a single step. All really recorded.

Each run replays bit for bit: only what is known of its programs, over all steps, says that it was no training.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from redteam.renames import put, take_away
from support.forging import forge
from support.recordings import replay_here, train
from torch import Tensor, nn
from torch.nn import functional as F

from weighbridge.core.errors import Finding
from weighbridge.program.tape_checks import check
from weighbridge.program.tape_policy import TapePolicy
from weighbridge.transcript.chip_notes import ChipNotes
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

ALLOWED = TapePolicy(free_values=1 << 20)
Turn = Callable[[int, dict[str, Tensor], nn.Sequential, torch.optim.Optimizer, dict[str, Any]], None]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def batches(count: int = 4) -> list[dict[str, Tensor]]:
    """Data, beside them a tensor of the shape of the first weights."""
    generator = torch.Generator().manual_seed(3)
    return [
        {
            "x": torch.randn(4, 8, generator=generator),
            "y": torch.randint(0, 4, (4,), generator=generator),
            "w": torch.randn(16, 8, generator=generator),
        }
        for _ in range(count)
    ]


def descend(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    F.cross_entropy(model(batch["x"]), batch["y"]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def record(path: Path, turn: Turn, make: Callable[[], nn.Sequential] = net) -> Path:
    """Records four steps of `turn`, which is told their number from 1 and may keep things from one to the next."""
    kept: dict[str, Any] = {"t": 0}

    def build() -> tuple[nn.Sequential, torch.optim.Optimizer]:
        model = make()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: dict[str, Tensor], model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        kept["t"] += 1
        turn(kept["t"], batch, model, optimizer, kept)

    train(path, build, step, batches())
    return path


def found(path: Path) -> list[Finding]:
    """What is said about the programs of a run that replays, above `info`."""
    result = replay_here(path)
    assert result["verdict"] == "match", result["findings"]
    transcript = Transcript.open(path)
    _, findings = check(transcript, lambda digest: Tape.decode(transcript.tape(digest)), ALLOWED)
    return [finding for finding in findings if finding.severity != "info"]


def honest(t: int, batch: Any, model: Any, optimizer: Any, kept: Any) -> None:
    descend(batch, model, optimizer)


def test_an_honest_run_passes(tmp_path: Path) -> None:
    assert found(record(tmp_path / "run", honest)) == []


def test_a_generator_that_normalises_noise_passes(tmp_path: Path) -> None:
    """Its running mean feeds itself by way of the weights, and is made from noise: a buffer all the same."""

    def make() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8), nn.Linear(8, 1))

    def turn(t: int, batch: Any, model: Any, optimizer: Any, kept: Any) -> None:
        made = model[:3](torch.randn(4, 8))
        (model[3](made).mean() - model[3](batch["x"]).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    assert found(record(tmp_path / "run", turn, make)) == []


# -- under another storage, in several steps ---------------------------------------------------------------------------


def by_way_of_what_is_kept(t: int, batch: Any, model: Any, optimizer: Any, kept: Any) -> None:
    if t == 4:
        put(kept.pop("w").clone(), model, optimizer)
    elif t == 3:
        kept["w"] = kept["w"] * 1.0
        return
    descend(batch, model, optimizer)
    if t == 2:
        take_away(model, optimizer)
        kept["w"] = batch["w"].clone()


def emptied_then_filled(t: int, batch: Any, model: Any, optimizer: Any, kept: Any) -> None:
    descend(batch, model, optimizer)
    if t == 3:
        with torch.no_grad():
            model[0].weight.zero_().add_(batch["w"])


def half_and_half(t: int, batch: Any, model: Any, optimizer: Any, kept: Any) -> None:
    """One half of the rows in one step, the other in the next."""
    descend(batch, model, optimizer)
    if t in (2, 3):
        with torch.no_grad():
            rows = slice(8) if t == 2 else slice(8, 16)
            model[0].weight[rows].copy_(batch["w"][rows])


@pytest.mark.parametrize("turn", [by_way_of_what_is_kept, emptied_then_filled, half_and_half])
def test_the_batch_in_the_place_of_weights(tmp_path: Path, turn: Turn) -> None:
    accused = [f for f in found(record(tmp_path / "run", turn)) if f.id == "tape.overwrite"]
    assert [(f.severity, f.found) for f in accused] == [("violation", "model.0.weight")]
    assert "the batch" in accused[0].message


# -- by other operations than a copy -----------------------------------------------------------------------------------

WRITES: dict[str, tuple[Callable[[Tensor, Tensor], object], str, str]] = {
    "clamp between copies": (lambda p, b: p.clamp_(b, b.clone()), "tape.overwrite", "violation"),
    "lerp": (lambda p, b: p.lerp_(b, 1.0), "tape.overwrite", "violation"),
    "mul and add": (lambda p, b: p.mul_(0).add_(b), "tape.overwrite", "violation"),
    "index_copy": (lambda p, b: p.index_copy_(0, rows(), b), "tape.no_gradient", "warning"),
    "masked_scatter": (lambda p, b: p.masked_scatter_(p == p, b), "tape.overwrite", "warning"),
    "where": (lambda p, b: p.copy_(torch.where(p == p, b, p)), "tape.no_gradient", "warning"),
    "cat": (lambda p, b: p.copy_(torch.cat([p[:1], b[1:]])), "tape.no_gradient", "warning"),
}


def rows() -> Tensor:
    """All rows of the first weights."""
    return torch.arange(16)


@pytest.mark.parametrize("name", WRITES)
def test_weights_written_by_operations_that_need_not_keep_anything(tmp_path: Path, name: str) -> None:
    write, identifier, severity = WRITES[name]

    def turn(t: int, batch: Any, model: Any, optimizer: Any, kept: Any) -> None:
        descend(batch, model, optimizer)
        if t == 3:
            with torch.no_grad():
                write(model[0].weight, batch["w"])

    accused = {(f.id, f.severity, f.found) for f in found(record(tmp_path / "run", turn))}
    assert (identifier, severity, "model.0.weight") in accused, accused


# -- switches ----------------------------------------------------------------------------------------------------------


def added(t: int, batch: Any, model: Any, optimizer: Any, kept: Any) -> None:
    descend(batch, model, optimizer)
    with torch.no_grad():
        model[0].weight[:, :8].add_(batch["w"])


def test_a_short_list_of_weights_hides_nothing(tmp_path: Path) -> None:
    def wide() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 256), nn.Linear(256, 4))

    plain = record(tmp_path / "plain", added, wide)
    run = forge(plain, tmp_path / "run", lambda *_: None, notes=ChipNotes(("model.2.bias",)))
    accused = {(f.id, f.severity) for f in found(run)}
    assert ("tape.no_gradient", "warning") in accused
    assert ("tape.weights.undeclared", "warning") not in accused
    transcript = Transcript.open(run)
    _, everything = check(transcript, lambda digest: Tape.decode(transcript.tape(digest)), ALLOWED)
    (short,) = [f for f in everything if f.id == "tape.weights.undeclared"]
    assert "model.2.weight" in short.found
