"""Each finding of a replay and about programs, alone in the report of an inspection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.clean_runs import Batch, forged, record, update
from support.exactly import exactly, found
from support.forging import Change, at_step, node, where
from support.hostile_tapes import crash
from support.written_chips import Bench
from torch import nn

from weighbridge.numerics.rounding import rounding_log
from weighbridge.transcript.chip_notes import ChipNotes
from weighbridge.transcript.tape import Node, Tape

Fields = dict[str, Any]


def test_an_honest_run_has_no_findings(bench: Bench, honest: Path) -> None:
    report = bench.inspected(bench.runs, bench.at_end(honest))
    assert found(report) == set(), report["findings"]
    assert report["counts"]["verified"] == 1


def unchanged(step: int, tape: Tape, fields: Fields) -> None:
    """For those who change the draft."""


def other_checksum(_: Tape, fields: Fields) -> None:
    sums = np.frombuffer(fields["checksums"], dtype="<u8").copy()
    sums[3] ^= np.uint64(1 << 17)
    fields["checksums"] = sums.tobytes()


def entry(position: int, width: int, bits: int) -> Callable[[Tape, Fields], None]:
    """Puts one entry into the log of the first matrix product, in place of those that are there."""

    def change(tape: Tape, fields: Fields) -> None:
        at = where(tape, "addmm.default")
        kept = [e for e in rounding_log.decode(fields["rounding"], max_entries=1 << 20) if e.op != at]
        one = (np.array([position]), np.array([width], dtype=np.uint8), np.array([bits], dtype=np.uint64))
        entries = sorted([*kept, rounding_log.OpEntries(at, 0, *one)], key=lambda e: (e.op, e.output))
        fields["rounding"], fields["logged"] = rounding_log.encode(entries), sum(len(e.positions) for e in entries)

    return change


def no_such_operand(tape: Tape, _: Fields) -> None:
    node(tape, where(tape, "addmm.default"), args=(("t", 1 << 20),) * 3)


def opens_a_file(tape: Tape, _: Fields) -> None:
    node(tape, where(tape, "addmm.default"), op="from_file.default")


def beyond(tape: Tape, _: Fields) -> None:
    """A view that goes on past its storage."""
    slot, dtype, size, stride, offset = tape.refs[0]
    tape.refs[0] = (slot, dtype, size, stride, offset + (1 << 20))


def terabyte(tape: Tape, _: Fields) -> None:
    slot, index = 10_000, len(tape.refs)
    tape.refs.append((slot, "f32", (1 << 38,), (1,), 0))
    tape.nodes.insert(0, Node("zeros.default", (("l", (1 << 38,)),), {}, (index,), ((slot, 1 << 40),)))
    tape.frees = [(at + 1, freed) for at, freed in tape.frees]
    tape.survivors.append((slot, "more"))


@pytest.mark.parametrize(
    ("change", "drafted", "expected"),
    [
        pytest.param(change, drafted, expected, marks=pytest.mark.finding(expected))
        for change, drafted, expected in (
            (at_step(2, other_checksum), {}, "replay.mismatch"),
            (unchanged, {"policy": "calibrated", "calibration": "0" * 64}, "replay.calibration.unknown"),
            (unchanged, {"rules": "0" * 64}, "replay.rules.unknown"),
            (at_step(2, entry(5, 3, 0b101)), {}, "replay.rounding.inadmissible"),
            (at_step(2, entry(1 << 30, 1, 0)), {}, "replay.rounding.malformed"),
            (at_step(2, no_such_operand), {}, "tape.malformed"),
            (at_step(2, opens_a_file), {}, "tape.forbidden"),
            (at_step(2, beyond), {}, "tape.out_of_bounds"),
            (at_step(2, terabyte), {}, "tape.too_large"),
        )
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_runs_that_cannot_be_replayed(
    bench: Bench, honest: Path, tmp_path: Path, change: Change, drafted: dict[str, Any], expected: str
) -> None:
    run = forged(honest, tmp_path / "runs" / "run", change, **drafted)
    report = bench.inspected(tmp_path / "runs", bench.at_end(run, replays=False))
    exactly(report, expected)
    assert report["counts"]["verified"] == 0


@pytest.mark.finding("replay.worker")
def test_a_tape_that_kills_its_process(bench: Bench, honest: Path, tmp_path: Path) -> None:
    run = forged(honest, tmp_path / "runs" / "run", at_step(2, crash))
    exactly(bench.inspected(tmp_path / "runs", bench.at_end(run, replays=False), apart=True), "replay.worker")


# -- what programs do --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drafted", "expected"),
    [
        pytest.param(drafted, expected, marks=pytest.mark.finding(expected))
        for drafted, expected in (
            ({"programs": [bytes(32)]}, "tape.undeclared"),
            ({"formulas": [["rate", "0.01 +"]]}, "tape.formula"),
            ({"formulas": []}, "tape.free_input"),
        )
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_programs_that_are_not_the_declared_ones(
    bench: Bench, honest: Path, tmp_path: Path, drafted: dict[str, Any], expected: str
) -> None:
    run = forged(honest, tmp_path / "runs" / "run", **drafted)
    exactly(bench.inspected(tmp_path / "runs", bench.at_end(run)), expected)


def stolen(step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    update(step, batch, model, optimizer)
    with torch.no_grad():
        model[2].bias.copy_(batch["x"].reshape(-1)[:8])  # type: ignore[index]


@pytest.mark.finding("tape.overwrite")
def test_a_program_that_puts_other_weights_in_place(bench: Bench, tmp_path: Path) -> None:
    run = record(tmp_path / "runs" / "run", stolen)
    exactly(bench.inspected(tmp_path / "runs", bench.at_end(run)), "tape.overwrite")


NAMES = [f"model.{n}.{kind}" for n in (2, 4) for kind in ("bias", "weight")]
WEIGHTS = ChipNotes(tuple(sorted([*NAMES, "model.0.weight"])))


def wide() -> nn.Sequential:
    """A classifier whose weights are more than what may go undeclared."""
    return nn.Sequential(nn.Embedding(12, 8), nn.Flatten(), nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 4))


@pytest.mark.finding("tape.weights.undeclared")
def test_a_run_that_declares_no_weights(bench: Bench, tmp_path: Path) -> None:
    plain = record(tmp_path / "plain", make=wide)
    passes = forged(plain, tmp_path / "passes" / "run", notes=WEIGHTS)
    assert found(bench.inspected(tmp_path / "passes", bench.at_end(passes))) == set()
    run = forged(plain, tmp_path / "runs" / "run", notes=ChipNotes(()))
    exactly(bench.inspected(tmp_path / "runs", bench.at_end(run)), "tape.weights.undeclared")


def around(step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    update(step, batch, model, optimizer)
    with torch.no_grad():
        model[2].bias.add_(batch["x"].reshape(-1)[:8])  # type: ignore[index]


@pytest.mark.finding("tape.no_gradient")
def test_weights_that_change_around_the_loss(bench: Bench, honest: Path, tmp_path: Path) -> None:
    """Which state holds weights is said in what is noted of the run's chips."""
    passes = forged(honest, tmp_path / "passes" / "run", notes=WEIGHTS)
    assert found(bench.inspected(tmp_path / "passes", bench.at_end(passes))) == set()
    run = record(tmp_path / "plain", around)
    run = forged(run, tmp_path / "runs" / "run", notes=WEIGHTS)
    exactly(bench.inspected(tmp_path / "runs", bench.at_end(run)), "tape.no_gradient")


SPELLED = np.random.default_rng(5).bytes(40_000)


def spells(step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """References into a table of all bytes spell what any tensor could hold."""
    update(step, batch, model, optimizer)
    table = torch.arange(256, dtype=torch.uint8).split(1)
    torch.cat([table[byte] for byte in SPELLED])


@pytest.mark.finding("transcript.chosen_bits")
def test_a_program_that_spells_data_with_its_structure(bench: Bench, tmp_path: Path) -> None:
    run = record(tmp_path / "runs" / "run", spells)
    report = bench.inspected(tmp_path / "runs", bench.at_end(run))
    exactly(report, "transcript.chosen_bits")
    (finding,) = [each for each in report["findings"] if each["id"] == "transcript.chosen_bits"]
    assert finding["evidence"]["channel"] == "structure"
