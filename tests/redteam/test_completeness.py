"""The ledger is complete: whatever changes weights is caught, or charged at least as many bits as were chosen.

One small honest run is really recorded. Each test changes what a Prover can choose, executes everything again, commits,
signs, and has it replayed in a confined worker. A change of weights that is neither would be a hole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import torch
from redteam.remade import Run
from redteam.remade_crowds import ACROSS, CROWDS
from redteam.remade_edits import Mutation
from redteam.remade_mutations import ALONE, ONCE, STANDING, WHOLE
from redteam.workshop import committed, digits, notes
from support.forging import forge
from support.recordings import train
from torch import Tensor, nn
from torch.nn import functional as F

from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.replay import replay
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.transcript.steps import Scalar

FORMULAS = {"descent": "-0.1 / t", "clip": "min(1, 1 / host)"}
AT = 3
"""The step that is changed, by a program that ran before it and runs after it."""
CLIPPED = slice(9, 13)
SEEDS = (1,)

PAIRS = 24
LUCK = 8.0
"""Bits by which a description may be shorter than an even choice: no code does that for more than one in 256."""


@dataclass
class Honest:
    """The honest run, as it was recorded and as its replay found it."""

    run: Run
    bits: dict[str, float]
    end: dict[str, Tensor]


def bits_of(result: ReplayResult) -> dict[str, float]:
    """Bits chosen, by channel."""
    return {channel: entry["bits"] for channel, entry in result.chosen.items()}


def accused(result: ReplayResult) -> set[str]:
    """What a replay found at or above warning, and its verdict if it did not match."""
    found = {f.id for f in result.findings if f.severity in ("warning", "violation")}
    return found if result.verdict == "match" else {*found, result.verdict}


def clip(values: list[Scalar], host: Scalar) -> None:
    """Gives the four factors of the gradients their formula's value, whatever norm the changed run has."""
    values[CLIPPED] = [min(1.0, 1.0 / float(host))] * 4


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Honest:
    place = tmp_path_factory.mktemp("honest")
    data, batches = committed([{name: each[:8] for name, each in batch.items()} for batch in digits(3, 4)])
    generator, models, rates = torch.Generator(), list[nn.Module](), iter([0.1, 0.1 / 2, 0.1 / 3, 0.1 / 4])

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(64, 6), nn.Tanh(), nn.Dropout(0.25), nn.Linear(6, 10))
        generator.manual_seed(5)
        models.append(model)
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        noisy = batch["x"] + 0.1 * torch.randn(batch["x"].shape, generator=generator)
        F.cross_entropy(model(noisy), batch["y"]).backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients).item()
        for gradient in gradients:
            gradient.mul_(min(1.0, 1 / norm))
        optimizer.param_groups[0]["lr"] = next(rates)
        optimizer.step()
        optimizer.zero_grad()

    train(place / "plain", build, step, batches, data=data, formulas=FORMULAS, every=2)
    # What a chip would have been told is the model's memory is said in the transcript.
    forge(place / "plain", place / "run", lambda *_: None, data=data, notes=notes(models[0]))
    run, result = Run.of(place / "run"), replay(place / "run")
    for each in run.steps[1:]:
        each.told = clip
    assert accused(result) == set()
    end = run.copied().write(place / "again")
    again = replay(place / "again")
    assert accused(again) == set()
    assert (again.state, bits_of(again)) == (result.state, bits_of(result)), "made again, it is the same"
    return Honest(run, bits_of(result), end)


def outcome(honest: Honest, path: Path, changes: Sequence[tuple[Mutation, int]], pick: Random) -> str:
    """Makes the run again with changes: `refused`, `caught`, `charged`, `idle` (no weight changed), or `hole`."""
    run = honest.run.copied()
    try:
        chosen = sum(mutation(run, at, pick) for mutation, at in changes)
        end = run.write(path)
    except (WeighbridgeError, IndexError, StopIteration, ValueError) as error:
        return f"refused: {error}"
    try:
        result = replay(path)
    except WeighbridgeError as error:
        return f"caught: {error}"
    if found := accused(result):
        return f"caught: {sorted(found)}"
    bits = bits_of(result)
    more = sum(max(0.0, bits[channel] - honest.bits.get(channel, 0.0)) for channel in bits)
    if more >= chosen:
        return f"charged: {more:.1f} of {chosen:.1f}"
    weights = {n for n in honest.end if n.startswith("model.") and not end.get(n, Tensor()).equal(honest.end[n])}
    return f"{'hole' if weights else 'idle'}: {more:.1f} of {chosen:.1f} bits, in {sorted(weights)}"


class Same(Random):
    """Chooses the first of what there is."""

    def getrandbits(self, k: int) -> int:
        """Zeros."""
        return 0


def name(mutation: object) -> str:
    return getattr(mutation, "__name__", str(mutation))


@pytest.mark.parametrize("number", SEEDS)
@pytest.mark.parametrize("mutation", [*ONCE, *WHOLE], ids=name)
def test_one_choice_is_caught_or_charged(honest: Honest, tmp_path: Path, mutation: Mutation, number: int) -> None:
    found = outcome(honest, tmp_path / "run", [(mutation, AT)], Random(number))
    assert found.startswith(("caught", "charged", "idle")), found


@pytest.mark.parametrize(("mutation", "channel"), STANDING, ids=name)
def test_what_every_run_chooses_is_charged_in_every_run(
    honest: Honest, tmp_path: Path, mutation: Mutation, channel: str
) -> None:
    """The honest run is charged as much: nobody can tell its seed from one that was searched for."""
    run = honest.run.copied()
    chosen = mutation(run, AT, Random(2))
    end = run.write(tmp_path / "run")
    assert any(not end[n].equal(data) for n, data in honest.end.items())
    result = replay(tmp_path / "run")
    assert accused(result) == set()
    assert bits_of(result)[channel] >= chosen


@pytest.mark.parametrize("number", range(PAIRS))
def test_two_choices_are_caught_or_charged_together(honest: Honest, tmp_path: Path, number: int) -> None:
    """In one step, in two steps, or one of them about the whole run."""
    pick = Random(1000 + number)
    for attempt in range(5):  # some two cannot be executed together
        first, second = pick.sample([m for m in (*ONCE, *WHOLE) if m not in ALONE], 2)
        changes = [(first, AT), (second, pick.choice([AT, AT + 1]))]
        found = outcome(honest, tmp_path / str(attempt), changes, pick)
        if not found.startswith("refused"):
            break
    assert found.startswith(("caught", "charged", "idle")), (name(first), name(second), found)


@pytest.mark.parametrize("mutation", CROWDS, ids=name)
def test_many_choices_in_one_step_are_each_charged(honest: Honest, tmp_path: Path, mutation: Mutation) -> None:
    """Compared with a program that is as long and chooses the same each time: being there pays for no choice."""
    chosen, bits = 0.0, list[float]()
    for pick in (Same(), Random(5)):
        run = honest.run.copied()
        chosen = mutation(run, AT, pick)
        run.write(tmp_path / str(len(bits)))
        result = replay(tmp_path / str(len(bits)))
        assert result.verdict == "match", result.findings
        bits.append(sum(bits_of(result).values()))
    assert bits[1] - bits[0] >= chosen - LUCK


@pytest.mark.parametrize(("mutation", "channel"), ACROSS, ids=name)
def test_a_choice_in_each_of_many_steps_is_charged(
    honest: Honest, tmp_path: Path, mutation: Mutation, channel: str
) -> None:
    run = honest.run.copied()
    chosen = mutation(run, AT, Random(6))
    run.write(tmp_path / "run")
    result = replay(tmp_path / "run")
    assert accused(result) == set()
    assert bits_of(result)[channel] >= chosen - LUCK
