"""Each finding about where a run began, and what its chip was told of it, alone in the report of an inspection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.clean_runs import END, forged, record
from support.exactly import exactly, found
from support.written_chips import Bench, WrittenChip
from torch import Tensor

from weighbridge.transcript.parentage import Parent
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def base(bench: Bench) -> Path:
    """A run from a seed, with a checkpoint at its end."""
    return record(bench.runs / "base", checkpoint_every=END - 1)


@pytest.fixture(scope="module")
def weights(base: Path) -> Weights:
    """What it came to."""
    last = Transcript.open(base).checkpoint(END)
    tensors = {view.name.removeprefix("model."): view.tensor(last.storages) for view in last.views}
    return {name: tensor for name, tensor in tensors.items() if name.endswith((".weight", ".bias"))}


@pytest.fixture(scope="module")
def half(bench: Bench, weights: Weights) -> Path:
    """One that goes on from there and does not say so."""
    return record(bench.runs / "half", begin=weights, seed=4)


def test_a_run_from_a_seed_and_a_declared_child_have_no_findings(
    bench: Bench, base: Path, weights: Weights, tmp_path: Path
) -> None:
    child = record(bench.runs / "child", begin=weights, parent=Parent.of(base), seed=5)
    report = bench.inspected(bench.runs, bench.at_end(base), bench.at_end(child))
    assert found(report) == set(), report["findings"]
    assert report["counts"]["verified"] == 2


@pytest.mark.finding("transcript.run.split")
def test_a_run_that_was_cut_in_two(bench: Bench, base: Path, half: Path) -> None:
    exactly(bench.inspected(bench.runs, bench.at_end(base), bench.at_end(half)), "transcript.run.split")


@pytest.mark.finding("transcript.origin.undeclared")
def test_a_model_that_came_from_nowhere(bench: Bench, half: Path) -> None:
    exactly(bench.inspected(bench.runs, bench.at_end(half)), "transcript.origin.undeclared")


@pytest.mark.finding("transcript.parent.mismatch")
def test_another_state_than_the_declared_parents(bench: Bench, base: Path, weights: Weights) -> None:
    altered = {name: tensor + 0.125 for name, tensor in weights.items()}
    run = record(bench.runs / "altered", begin=altered, parent=Parent.of(base), seed=6)
    exactly(bench.inspected(bench.runs, bench.at_end(run)), "transcript.parent.mismatch")


@pytest.mark.finding("transcript.parent.missing")
def test_a_parent_that_nobody_shows(bench: Bench, base: Path, weights: Weights, tmp_path: Path) -> None:
    run = record(tmp_path / "runs" / "child", begin=weights, parent=Parent.of(base), seed=7)
    exactly(bench.inspected(tmp_path / "runs", bench.at_end(run)), "transcript.parent.missing")


@pytest.mark.finding("transcript.parent.unverified")
def test_a_parent_that_cannot_be_replayed_here(bench: Bench, base: Path, weights: Weights, tmp_path: Path) -> None:
    """It was recorded by a version with other rules, and kept no checkpoint of its end."""
    parent = forged(base, tmp_path / "runs" / "parent", rules="0" * 64)
    run = record(tmp_path / "runs" / "child", begin=weights, parent=Parent.of(parent), seed=8)
    exactly(bench.inspected(tmp_path / "runs", bench.at_end(run)), "transcript.parent.unverified")


@pytest.mark.finding("format.malformed")
def test_a_declaration_that_is_none(bench: Bench, base: Path, tmp_path: Path) -> None:
    run = forged(base, tmp_path / "runs" / "run", parent={"transcript": b"the best one"})
    exactly(bench.inspected(tmp_path / "runs", bench.at_end(run)), "format.malformed")


# -- what the chip was told --------------------------------------------------------------------------------------------


def naming(chip: WrittenChip, base: Path, target: Path, places: dict[int, int], op: int = 5) -> Path:
    """A run whose records name the chip's log entries, by step, at an operation."""

    def name(step: int, tape: Tape, fields: dict[str, Any]) -> None:
        if step in places:
            fields["snapshots"] = [(chip.ueid, places[step], op)]

    return forged(base, target, name)


@pytest.mark.finding("transcript.commitment.missing")
def test_a_transcript_that_the_chip_was_not_told_of(bench: Bench, base: Path, tmp_path: Path) -> None:
    chip = bench.written()
    run = naming(chip, base, tmp_path / "runs" / "run", {2: 1})
    chip.saw(run, 2, 5)
    exactly(bench.inspected(tmp_path / "runs", chip), "transcript.commitment.missing")


@pytest.mark.finding("transcript.head.mismatch")
def test_a_transcript_of_another_history(bench: Bench, base: Path, tmp_path: Path) -> None:
    chip = bench.written()
    run = naming(chip, base, tmp_path / "runs" / "run", {2: 2})
    chip.told(run).saw(run, 2, 5, head=b"h" * 32)
    exactly(bench.inspected(tmp_path / "runs", chip), "transcript.head.mismatch")


@pytest.mark.finding("transcript.work.impossible")
def test_more_work_than_the_chip_can_do(bench: Bench, base: Path, tmp_path: Path) -> None:
    """The chip counted nothing of it, in the second between its two snapshots."""
    chip = bench.written()
    run = naming(chip, base, tmp_path / "runs" / "run", {1: 2, 3: 3})
    chip.told(run).saw(run, 1, 5, flops=0)
    chip.saw(run, 3, 5, flops=0)
    exactly(bench.inspected(tmp_path / "runs", chip, peak_flops=10.0), "transcript.work.impossible")
