"""Each finding about jobs on several ranks, alone in an inspection's report or in the answer of a command."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.clean_runs import forged
from support.exactly import command, exactly, findings_of, found, refused
from support.forging import Change, at_step, node, where
from support.recording_store import RecordingStore
from support.sharded_runs import recorded
from support.written_chips import Bench, WrittenChip

from prover.keeping.archive import Archive
from prover.keeping.cell_requests import Cells
from prover.service import ProverService
from weighbridge.cli.main import run as weighbridge
from weighbridge.execution.collective_openings import Opening, Target
from weighbridge.transcript.job_record import RECORD, rank_name
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import Checkpoint, checkpoint_digest
from weighbridge.transcript.tape import Node, Tape

ALL_REDUCE = "weighbridge::all_reduce.default"


@pytest.fixture(scope="module")
def job(bench: Bench, recordings: RecordingStore) -> Path:
    """An honest job on two ranks."""
    return shutil.copytree(recorded(recordings, ["ddp"], 2) / "ddp", bench.runs / "ddp")


@pytest.fixture(scope="module")
def chip(bench: Bench, job: Path) -> WrittenChip:
    """The chip of rank 0, after its last step."""
    return bench.at_end(job / rank_name(0))


class Answering(ProverService):
    """A Prover with other answers about cells."""

    def __init__(self, archive: Archive, cells: type[Cells] = Cells) -> None:
        super().__init__(archive)
        self._cells = cells(archive)


def test_an_honest_job_has_no_findings_either_way(bench: Bench, job: Path, chip: WrittenChip) -> None:
    for sharded in ("all", "cells"):
        report = bench.inspected(bench.runs, chip, sharded=sharded)
        assert found(report) == set(), report["findings"]
        assert report["counts"]["verified"] == 1


# -- all ranks ---------------------------------------------------------------------------------------------------------


def with_other_rank(job: Path, target: Path, rank: int, change: Change = lambda *_: None, **options: Any) -> Path:
    """A copy of a job in which one rank's transcript is forged."""
    target.mkdir(parents=True)
    shutil.copyfile(job / RECORD, target / RECORD)
    shutil.copytree(job / rank_name(1 - rank), target / rank_name(1 - rank))
    forged(job / rank_name(rank), target / rank_name(rank), change, **options)
    return target


def averages(tape: Tape, _: dict[str, Any]) -> None:
    at = where(tape, ALL_REDUCE)
    args = tape.nodes[at].args
    node(tape, at, args=(*args[:2], ("s", "max"), *args[3:]))


@pytest.mark.finding("job.collective.mismatch")
def test_ranks_that_do_not_call_for_the_same(bench: Bench, job: Path, chip: WrittenChip, tmp_path: Path) -> None:
    with_other_rank(job, tmp_path / "runs" / "job", 1, at_step(3, averages))
    exactly(bench.inspected(tmp_path / "runs", chip), "job.collective.mismatch")


@pytest.mark.finding("job.tail")
def test_a_rank_that_a_crash_cut_off(bench: Bench, job: Path, chip: WrittenChip, tmp_path: Path) -> None:
    with_other_rank(job, tmp_path / "runs" / "job", 1, crashed_in=3)
    report = bench.inspected(tmp_path / "runs", chip)
    exactly(report, "job.tail")
    assert report["findings"][0]["severity"] == "info"


# -- one rank alone ----------------------------------------------------------------------------------------------------


class Flipping(Cells):
    """Sends results with another last byte."""

    def results(self, *arguments: Any) -> Iterator[bytes]:
        whole = b"".join(super().results(*arguments))
        yield whole[:-1] + bytes([whole[-1] ^ 1])


class Silent(Cells):
    """Opens no chunk."""

    def openings(
        self, transcript_id: str, ranks: Sequence[str], targets: Sequence[Target], _: Any
    ) -> Iterator[Opening]:
        yield from ()


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        pytest.param(Flipping, "job.results.mismatch", marks=pytest.mark.finding("job.results.mismatch")),
        pytest.param(Silent, "job.chunk.missing", marks=pytest.mark.finding("job.chunk.missing")),
    ],
)
def test_what_a_prover_answers_about_a_cell(bench: Bench, chip: WrittenChip, cells: type[Cells], expected: str) -> None:
    service: Any = partial(Answering, cells=cells)
    exactly(bench.inspected(bench.runs, chip, service=service, sharded="cells"), expected)


@pytest.mark.finding("job.results.differ")
def test_ranks_that_say_that_they_got_different_results(
    bench: Bench, job: Path, chip: WrittenChip, tmp_path: Path
) -> None:
    """Rank 1 commits to something else. The Prover answers from the job as it really was."""

    def other_result(tape: Tape, fields: dict[str, Any]) -> None:
        at = where(tape, ALL_REDUCE)
        fields["collectives"] = [
            (op, given, bytes(32) if op == at else got) for op, given, got in fields["collectives"]
        ]

    with_other_rank(job, tmp_path / "runs" / "job", 1, at_step(3, other_result))

    class Elsewhere(Cells):
        @contextmanager
        def _job(self, transcript_id: str, ranks: Sequence[str]) -> Iterator[tuple[Path, int]]:
            shutil.copytree(job, tmp_path / "scratch" / transcript_id / "job", dirs_exist_ok=True)
            yield tmp_path / "scratch" / transcript_id / "job", list(ranks).index(transcript_id)

    service: Any = partial(Answering, cells=Elsewhere)
    exactly(bench.inspected(tmp_path / "runs", chip, service=service, sharded="cells"), "job.results.differ")


def enormous(tape: Tape, fields: dict[str, Any]) -> None:
    """One more all-reduce, over 128 GiB."""
    slot, ref, at = 10_000, len(tape.refs), len(tape.nodes)
    tape.refs.append((slot, "f32", (1 << 35,), (1,), 0))
    shape, side = ("l", (1 << 35,)), ("l", (("t", ref),))
    tape.nodes += [
        Node("empty.memory_format", (shape,), {"dtype": ("d", "f32")}, (ref,), ((slot, 1 << 37),)),
        Node(ALL_REDUCE, (side, side, ("s", "sum"), ("l", (0, 1)), 0, 0), {}, ()),
    ]
    tape.frees = [*tape.frees, (at + 2, slot)]
    fields["collectives"] = [*fields["collectives"], (at + 1, bytes(32), bytes(32))]


@pytest.mark.finding("job.results.oversized")
def test_results_that_are_larger_than_a_verifier_fetches(bench: Bench, job: Path, tmp_path: Path) -> None:
    forgery = with_other_rank(job, tmp_path / "runs" / "job", 0, at_step(3, enormous))
    chip = bench.at_end(forgery / rank_name(0), replays=False)
    exactly(bench.inspected(tmp_path / "runs", chip, sharded="cells"), "job.results.oversized")


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.finding("replay.collectives.missing")
def test_a_rank_that_is_replayed_without_the_others(job: Path) -> None:
    assert refused("replay", job / rank_name(1)) == "replay.collectives.missing"


@pytest.mark.finding("layout.differs")
def test_a_rank_that_holds_other_weights_than_its_layout_says(job: Path, tmp_path: Path) -> None:
    """Ranks of this job hold all of every tensor, so each is as good as a run that was not sharded."""
    whole = job / rank_name(0)
    assert weighbridge(["job", "layout", str(job), str(whole), "--step", "3"]) == 0
    assert weighbridge(["job", "layout", str(job), str(whole), "--step", "2"]) == 2, "there is no such checkpoint"
    original = Transcript.open(job / rank_name(1)).checkpoint(3)
    name = next(name for name in original.storages if name.endswith("0.weight"))
    other = replace(original, storages={**original.storages, name: torch.zeros_like(original.storages[name])})

    def slip(_: Tape, fields: dict[str, Any]) -> None:
        fields["state"] = checkpoint_digest(other)

    def checkpoint(each: Checkpoint) -> Checkpoint:
        return other if each.step == 3 else each

    forgery = with_other_rank(job, tmp_path / "job", 1, at_step(2, slip), checkpoint=checkpoint)
    status, said, _ = command("job", "layout", forgery, whole, "--step", "3", "--json")
    assert (status, findings_of(said)) == (1, {"layout.differs"})
