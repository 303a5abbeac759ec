"""Models made elsewhere that come in through where a run says that it began.

Every run here replays, and each is honest but for one thing. What is told of a parent costs the Prover nothing: no chip
has to show it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from redteam.remade import Run
from support.forging import forge, resign
from support.lineages import State, findings, net, record, trace
from support.recordings import replay_here
from torch import Tensor, nn

from verifier.checks import parent_runs
from weighbridge.core.host_memory import octets
from weighbridge.program.tape_policy import AS_DESIGNED, BUDGETS
from weighbridge.transcript.parentage import Parent
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Input, Node, Tape


def foreign(model: nn.Module) -> None:
    """Puts a model made elsewhere in the place of the weights, behind the Recorder's back."""
    draw = torch.Generator().manual_seed(99)
    for p in model.parameters():
        wanted = torch.randn(p.shape, generator=draw).numpy().tobytes()
        np.frombuffer(octets(p), dtype=np.uint8)[...] = np.frombuffer(wanted, dtype=np.uint8)


@pytest.mark.parametrize("every", [2, 50], ids=["with a checkpoint of it", "without one"])
def test_a_parent_whose_last_step_was_made_up(tmp_path: Path, every: int) -> None:
    """Its records and its checkpoint name the state; only executing its programs tells that they do not lead there."""
    weights = record(tmp_path / "parent", steps=3, last=foreign, checkpoint_every=every, verify_state=False)
    parent = Transcript.open(tmp_path / "parent")
    at = max((c for c in parent.checkpoint_steps if c > 1), default=parent.steps)
    if every == 2:  # the end of the parent, which has a checkpoint
        assert at == parent.steps - 1
    record(tmp_path / "child", begin=weights, parent=Parent.of(parent), seed=2)
    found = findings(tmp_path / "child", known=(tmp_path / "parent",))
    assert ("replay.mismatch", "violation") in {(f.id, f.severity) for f in found}
    assert any(parent.digest in f.subject for f in found)


@pytest.mark.parametrize("policies", [("mixed", "blocked-64"), ("blocked-64", "mixed")])
def test_a_child_may_have_other_bounds_than_its_parent(tmp_path: Path, policies: tuple[str, str]) -> None:
    """Each is replayed under the bounds of its own draft, so a lineage has none that no draft names."""
    weights = record(tmp_path / "parent", policy=policies[0])
    parent = Parent.of(Transcript.open(tmp_path / "parent"))
    record(tmp_path / "child", begin=weights, parent=parent, seed=2, policy=policies[1])
    assert [f.id for f in findings(tmp_path / "child", known=(tmp_path / "parent",)) if f.severity != "info"] == []
    assert replay_here(tmp_path / "child")["verdict"] == "match"


class Scattered(nn.Module):
    """A model in storages of two numbers each: content of eight bytes, which any program may make."""

    def __init__(self, pieces: int = 24) -> None:
        super().__init__()
        self.pieces = nn.ParameterList([nn.Parameter(torch.randn(2)) for _ in range(pieces)])

    def forward(self, x: Tensor) -> Tensor:
        """Multiplies with the first numbers."""
        return x * torch.cat(list(self.pieces))[: x.shape[1]]


@pytest.mark.parametrize("declared", [True, False])
def test_a_model_in_pieces_of_eight_bytes(tmp_path: Path, declared: bool) -> None:
    """The declared parent is an honest run, and held none of it."""
    record(tmp_path / "parent", make=Scattered, seed=1)
    torch.manual_seed(99)
    pieces = {name: p.detach() for name, p in Scattered().named_parameters()}
    parent = Parent.of(tmp_path / "parent") if declared else None
    record(tmp_path / "child", begin=pieces, make=Scattered, parent=parent, seed=2)
    chosen = replay_here(tmp_path / "child")["chosen"]["origin"]["bits"]
    assert chosen >= 64 * len(pieces), "and the ledger shows it"
    expected = ("transcript.parent.mismatch", "violation") if declared else ("transcript.origin.undeclared", "warning")
    found = findings(tmp_path / "child", known=(tmp_path / "parent",))
    assert [(f.id, f.severity) for f in found] == [expected]


def test_the_same_model_from_a_parent_that_held_it_passes(tmp_path: Path) -> None:
    weights = record(tmp_path / "parent", make=Scattered, seed=1)
    parent = Parent.of(tmp_path / "parent")
    record(tmp_path / "child", begin=weights, make=Scattered, parent=parent, seed=2)
    assert findings(tmp_path / "child", known=(tmp_path / "parent",)) == []


def test_a_beginning_that_no_checkpoint_shows(tmp_path: Path) -> None:
    """The weights existed before; the only checkpoint is a later one, so nobody could tell what they were."""
    record(tmp_path / "run", begin={name: t + 1 for name, t in net().state_dict().items()}, checkpoint_every=2)
    assert [f.id for f in findings(tmp_path / "run")] == ["transcript.origin.undeclared"]
    (tmp_path / "run" / "checkpoints" / "00000001.safetensors").unlink()
    resign(tmp_path / "run", checkpoints=(3, 5))
    assert [(f.id, f.severity) for f in findings(tmp_path / "run")] == [("transcript.malformed", "violation")]
    result = replay_here(tmp_path / "run", stop=(4, 0))
    assert result["verdict"] == "match"
    assert "transcript.malformed" in {f["id"] for f in result["findings"] if f["severity"] == "violation"}


# -- many runs, each below every budget --------------------------------------------------------------------------------

DIGITS = 40


def spelling(seed: int) -> Callable[[nn.Module], None]:
    """A last step in which references into a table spell numbers."""

    def last(model: nn.Module) -> None:
        table = torch.arange(256, dtype=torch.uint8).split(1)
        draw = torch.Generator().manual_seed(seed)
        wanted = torch.randint(0, 256, (4 * DIGITS,), generator=draw).tolist()
        with torch.no_grad():
            model.position_ids.add_(torch.cat([table[byte] for byte in wanted])[:12])

    return last


def lineage(place: Path, last: Callable[[int], Callable[[nn.Module], None]], runs: int = 3) -> list[Path]:
    """Runs that go on from each other, the first one first."""
    weights: State | None = None
    paths: list[Path] = []
    for number in range(runs):
        parent = Parent.of(paths[-1]) if paths else None
        paths.append(place / str(number))
        weights = record(paths[-1], begin=weights, parent=parent, seed=number + 1, steps=2, last=last(number))
    return paths


def test_a_lineage_that_chooses_together_what_no_run_may(tmp_path: Path) -> None:
    honest = lineage(tmp_path / "honest", lambda number: lambda model: None)
    dishonest = lineage(tmp_path / "dishonest", spelling)
    bits: list[Any] = []
    for paths in (honest, dishonest):
        line = trace(paths[-1], known=tuple(paths[:-1]))["2"]
        assert line.runs == 3
        assert not isinstance(line.chosen, Exception)
        bits.append((line.chosen["structure"], replay_here(paths[-1])["chosen"]["structure"]["bits"], line))
    (all_honest, one_honest, line), (all_told, one_told, other) = bits
    assert all_honest < 1.5 * one_honest, "programs that run again in the next run are known"
    assert all_told - all_honest > 3 * 8 * 4 * DIGITS * 0.9, "other numbers in each run are charged in each"
    limit = replace(AS_DESIGNED, budgets={**BUDGETS, "structure": (max(one_told, all_honest) + all_told) / 2})
    assert parent_runs.check(line, programs=limit) == []
    (found,) = parent_runs.check(other, programs=limit)
    assert (found.id, found.severity) == ("transcript.chosen_bits", "violation")
    assert (found.evidence["channel"], found.evidence["runs"]) == ("structure", 3)


def bringing(seed: int) -> Callable[[nn.Module], None]:
    """A last step that an undeclared tensor enters, of which no single run gives account."""

    def last(model: nn.Module) -> None:
        brought = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, 120, dtype=np.uint8))
        with torch.no_grad():
            model.position_ids.add_(brought[:12])

    return last


def test_a_lineage_into_which_each_run_brings_a_small_tensor(tmp_path: Path) -> None:
    """Each is info by itself; together they are more than a few class weights."""
    paths = lineage(tmp_path, bringing)
    assert [f for f in findings(paths[0]) if f.id == "tape.free_input" and f.severity != "info"] == []
    line = trace(paths[-1], known=tuple(paths[:-1]))["2"]
    assert not isinstance(line.chosen, Exception)
    assert line.chosen["tensors"] == 3 * 8 * 120
    (found,) = [f for f in parent_runs.check(line) if f.evidence.get("channel") == "tensors"]
    assert (found.id, found.severity, found.evidence["runs"]) == ("transcript.chosen_bits", "violation", 3)


# -- what step 0 excuses -----------------------------------------------------------------------------------------------


def test_a_program_of_the_initialisation_that_takes_weights_later(tmp_path: Path) -> None:
    """Step 0 takes zeros from outside, which is no more than information; the same program takes weights in step 1."""
    record(tmp_path / "plain", steps=1)
    run = Run.of(tmp_path / "plain")
    row = ((40,), (1,), 0)
    tape = Tape(
        inputs=[Input(0, 160, "free", "w")],
        refs=[(0, "f32", *row), (1, "f32", *row)],
        nodes=[Node("clone.default", (("t", 0),), {}, (1,), ((1, 160),))],
        frees=[(1, 0)],
        survivors=[(1, "~0/1")],
    )
    for step, taken in zip(run.steps, (torch.zeros(40), torch.randn(40)), strict=True):
        step.tape, step.batch, step.undeclared = tape, {}, {"w": taken}
        step.record = replace(step.record, values=[], host=[], rng={})
    run.checkpoints.clear()
    run.write(tmp_path / "run")
    result = replay_here(tmp_path / "run")
    assert result["verdict"] == "match"
    assert ("tape.free_input", "violation") in {(f["id"], f["severity"]) for f in result["findings"]}
    assert result["chosen"]["tensors"]["bits"] >= 8 * 160


def job(place: Path, last: Callable[[int], Callable[[nn.Module], None]]) -> list[Path]:
    """Two runs whose drafts say that they are the ranks of one job."""
    paths = []
    for rank in range(2):
        record(place / f"plain-{rank}", steps=1, last=last(rank))
        named = {"id": bytes(16), "mesh": [["data", 2]], "rank": rank}
        paths.append(forge(place / f"plain-{rank}", place / f"rank-{rank}", lambda *_: None, job=named))
    return paths


def test_ranks_that_choose_together_what_none_may(tmp_path: Path) -> None:
    found: list[Any] = []
    for name, last in (("honest", lambda rank: lambda model: None), ("dishonest", spelling)):
        line, other = trace(*job(tmp_path / name, last)).values()
        assert (line.runs, other.runs) == (2, 1), "once for a job"
        assert not isinstance(line.chosen, Exception)
        found.append((line.chosen["structure"], line))
    (honest_bits, honest), (told_bits, dishonest) = found
    assert told_bits - honest_bits > 2 * 8 * 4 * DIGITS * 0.9
    limit = replace(AS_DESIGNED, budgets={**BUDGETS, "structure": (honest_bits + told_bits) / 2})
    assert parent_runs.check(honest, programs=limit) == []
    assert [(f.id, f.severity) for f in parent_runs.check(dishonest, programs=limit)] == [
        ("transcript.chosen_bits", "violation")
    ]
