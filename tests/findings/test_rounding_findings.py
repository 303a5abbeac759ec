"""What a rounding log can and cannot be used for: the findings about it, alone in the report of an inspection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from redteam.inconclusive import (
    ELSEWHERE,
    Fields,
    committed,
    moved,
    rechecked,
    recorded,
    relogged,
    results,
)
from support.clean_runs import forged
from support.exactly import exactly, found
from support.forging import at_step
from support.recordings import replay_here, train
from support.tied_rows import ones, square, ties
from support.written_chips import Bench
from torch import Tensor, nn

from weighbridge.numerics.rounding.contested import ordered
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.transcript.tape import Tape

SIZE = 64


# -- a bound that is too small for the device --------------------------------------------------------------------------


@pytest.mark.finding("replay.inconclusive")
def test_a_difference_next_to_a_boundary(bench: Bench, tmp_path: Path) -> None:
    honest = recorded(tmp_path / "honest" / "run", ones, square, ties())
    assert found(bench.inspected(tmp_path / "honest", bench.at_end(honest))) == set()
    run = moved(honest, tmp_path / "runs" / "run", device=ELSEWHERE)
    report = bench.inspected(tmp_path / "runs", bench.at_end(run, replays=False))
    exactly(report, "replay.inconclusive")
    (finding,) = report["findings"]
    assert (finding["severity"], finding["evidence"]["declared"]) == ("info", ELSEWHERE)
    assert report["counts"]["verified"] == 0


@pytest.mark.finding("replay.inconclusive.many")
def test_differences_next_to_boundaries_in_run_after_run(bench: Bench, tmp_path: Path) -> None:
    """A Prover who leaves entries out whenever a replay would show what it did."""
    honest = recorded(tmp_path / "honest" / "run", ones, square, ties())
    chips = [
        bench.at_end(moved(honest, tmp_path / "runs" / f"run{n}", n, device=ELSEWHERE), replays=False) for n in range(2)
    ]
    report = bench.inspected(tmp_path / "runs", *chips)
    exactly(report, "replay.inconclusive.many", ["replay.inconclusive"])  # it counts these
    (many,) = [each for each in report["findings"] if each["id"] == "replay.inconclusive.many"]
    assert many["severity"] == "warning"
    assert ELSEWHERE in many["message"]
    assert report["counts"]["verified"] == 0


# -- a log that is made on demand --------------------------------------------------------------------------------------


@pytest.mark.finding("replay.log.absent")
def test_a_step_whose_log_nobody_made(bench: Bench, tmp_path: Path) -> None:
    """A result that a log could explain; whether the Prover computed it elsewhere or made it up, none can tell yet."""

    def elsewhere(_: Tape, fields: Fields) -> None:
        sums = np.frombuffer(fields["checksums"], dtype="<u8").copy()
        sums[0] ^= np.uint64(1 << 20)
        fields["checksums"] = sums.tobytes()

    honest = tmp_path / "honest" / "run"
    train(honest, ones, square, [ties()], data=committed(ties()), logs="on-demand")
    clean = bench.inspected(tmp_path / "honest", bench.at_end(honest))
    assert (found(clean), clean["counts"]["verified"]) == (set(), 1), "its Prover makes the log"
    run = forged(honest, tmp_path / "runs" / "run", at_step(1, elsewhere), device=ELSEWHERE)
    report = bench.inspected(tmp_path / "runs", bench.at_end(run, replays=False))
    # The inspection asks for the log too, and says that and how often this Prover did not make one.
    exactly(report, "replay.log.absent", beside=("prover.supplements.refused", "prover.supplements.missing"))
    (finding,) = [each for each in report["findings"] if each["id"] == "replay.log.absent"]
    assert (finding["severity"], finding["evidence"]["declared"]) == ("warning", ELSEWHERE)
    assert "weighbridge regenerate RUN --steps 1:2" in finding["message"]
    assert (report["counts"]["verified"], report["verdict"]) == (0, "findings")


# -- entries that are left out -----------------------------------------------------------------------------------------


def halves() -> dict[str, Tensor]:
    """The rows of `ties`, eight times."""
    return {"x": ties()["x"].repeat(8, 1)}


def look(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """So many products, all of them contested, that those which a replay draws say something; whatever it draws."""
    with torch.no_grad():
        for _ in range(64):
            model(batch["x"])


@pytest.mark.finding("replay.rounding.one_sided")
def test_a_log_whose_entries_were_left_out(bench: Bench, tmp_path: Path) -> None:
    """On the kind of device that recorded the run nothing changes; elsewhere a replay would come to no verdict."""
    honest = recorded(tmp_path / "honest" / "run", ones, look, halves())
    assert found(bench.inspected(tmp_path / "honest", bench.at_end(honest))) == set()
    run = forged(honest, tmp_path / "runs" / "run", at_step(1, lambda _, fields: relogged(fields, lambda each: None)))
    report = bench.inspected(tmp_path / "runs", bench.at_end(run))
    exactly(report, "replay.rounding.one_sided")
    (finding,) = report["findings"]
    assert (finding["severity"], finding["found"]) == ("warning", "100%")


# -- a log as an input -------------------------------------------------------------------------------------------------


def smuggler() -> tuple[nn.Module]:
    return (nn.Linear(SIZE, 1, bias=False),)


def smuggle(batch: dict[str, Tensor], model: nn.Linear) -> None:
    """Zero by any reading of the program; yet its bound is wider than any weight."""
    with torch.no_grad():
        model.weight.copy_(batch["large"].t() @ batch["ones"])


CANCELLING = {"large": torch.tensor([[1e30], [-1e30]]), "ones": torch.ones(2, SIZE)}


@pytest.mark.finding("replay.rounding.freedom")
def test_weights_that_come_in_by_the_log(bench: Bench, tmp_path: Path) -> None:
    honest = recorded(tmp_path / "honest" / "run", smuggler, smuggle, CANCELLING)
    assert found(bench.inspected(tmp_path / "honest", bench.at_end(honest))) == set()
    (seen,) = results(honest, (1, SIZE))
    weights = np.random.default_rng(5).standard_normal(SIZE).astype(np.float32)

    def steered(entries: OpEntries) -> OpEntries:
        mask = (np.int64(1) << entries.widths.astype(np.int64)) - 1
        return replace(entries, bits=(ordered(weights) & mask).astype(np.uint64))

    def insert(_: Tape, fields: Fields) -> None:
        relogged(fields, lambda entries: steered(entries) if entries.op == seen.op else entries)
        rechecked(fields, seen.index, torch.from_numpy(weights))

    draft = forged(honest, tmp_path / "draft", at_step(1, insert))
    said = replay_here(draft)["first_difference"]  # it lacks but the digest of the state that comes of it
    assert said["operation"] == "state"

    def whole(tape: Tape, fields: Fields) -> None:
        insert(tape, fields)
        fields["state"] = bytes.fromhex(said["found"])

    run = forged(honest, tmp_path / "runs" / "run", at_step(1, whole))
    report = bench.inspected(tmp_path / "runs", bench.at_end(run))
    exactly(report, "replay.rounding.freedom")
    (snapshot,) = report["chips"][0]["snapshots"]
    assert snapshot["replay"]["verdict"] == "match", "which is why the finding is needed"
