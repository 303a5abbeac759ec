"""Logs as sketches: replays elsewhere come to the recorded bits without a log; hostile ones bring in nothing."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import sketched
from support.forging import at_step, forge, rewrite
from support.on_demand import ELSEWHERE, key_of
from support.recordings import replay_here
from support.sketched import HEADER, garbage

from prover import Recorder
from weighbridge import ReplayResult, replay
from weighbridge.core.errors import FormatError, TranscriptError, UsageError
from weighbridge.execution.following import LOOKS
from weighbridge.execution.regeneration import regenerate
from weighbridge.numerics.sketches.step_sketches import MAGIC, SketchWriter, split
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "1"}

needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch multiplies without MKL")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sketched.record(tmp_path_factory.mktemp("sketched") / "run")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sketched.record(tmp_path_factory.mktemp("full") / "run", logs="full")


@pytest.fixture(scope="module")
def elsewhere(run: Path) -> ReplayResult:
    """The replay with other kernels, in a process of its own."""
    return replay(run, env=ELSEWHERE)


def ids(findings: Any) -> set[str]:
    return {each["id"] if isinstance(each, dict) else each.id for each in findings} - {"data.not_precommitted"}


# -- honest ------------------------------------------------------------------------------------------------------------


def test_every_bit_is_that_of_a_recording_in_full(run: Path, full: Path) -> None:
    mine, theirs = Transcript.open(run), Transcript.open(full)
    assert (mine.draft["format"], theirs.draft["format"]) == (3, 1)
    for a, b in zip(mine.records(), theirs.records(), strict=True):
        for name in ("tape", "values", "host", "rng", "state", "checksums", "batch", "rounded"):
            assert getattr(a, name) == getattr(b, name), name
        assert (len(a.outputs), a.sketches, b.sketches) == (32, 1, 0)
    sizes = [sum(len(each.named_log(step)) for step in range(each.steps)) for each in (mine, theirs)]
    assert 10 * sizes[0] < sizes[1]


@needs_mkl
def test_another_instruction_set_comes_to_the_recorded_bits(elsewhere: ReplayResult, full: Path) -> None:
    logged = replay(full, env=ELSEWHERE)
    assert (elsewhere.verdict, ids(elsewhere.findings)) == ("match", set())
    assert elsewhere.followed == logged.followed > 0
    assert elsewhere.state == logged.state
    # What is charged to the ledger is which elements were overruled, and how, whatever said so.
    for name in ("overruled", "bits_in", "charged_bits", "charged_step_bits"):
        assert elsewhere.evidence[name] == logged.evidence[name] > 0
    assert elsewhere.evidence["only_here"] == elsewhere.evidence["only_logged"] == 0


def test_a_third_one_too(run: Path) -> None:
    assert replay(run, env=AVX2).verdict == "match"


def test_an_accelerator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="on the CPU only"):
        sketched.record(tmp_path / "run", device="cuda")


def test_a_crash_changes_nothing(run: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _train(tmp_path / "run", crash_at=2)
    _train(tmp_path / "run")
    resumed = Transcript.open(tmp_path / "run")
    assert len(resumed.resumptions) == 1
    assert [r.digest() for r in resumed.records()] == [r.digest() for r in Transcript.open(run).records()]
    assert replay_here(tmp_path / "run")["verdict"] == "match"


def _train(path: Path, *, crash_at: int = -1) -> None:
    with Recorder(path, seed=7, checkpoint_every=2, logs="sketch", device="cpu", resume=True) as recorder:
        with recorder.initialisation():
            built = sketched.build()
        recorder.attach(*built)
        for number, batch in list(enumerate(sketched.batches()))[recorder.updates :]:
            if number == crash_at:
                raise KeyboardInterrupt
            with recorder.step(batch):
                sketched.step(batch, *built)


def test_compiled_steps_make_the_same_sketches(tmp_path: Path) -> None:
    for compiled in (False, True):
        path = tmp_path / str(compiled)
        with Recorder(path, seed=7, checkpoint_every=9, logs="sketch", device="cpu") as recorder:
            with recorder.initialisation():
                built = sketched.build()
            recorder.attach(*built)
            step = recorder.compile(lambda batch, built=built: sketched.step(batch["x"], *built))
            for batch in [*sketched.batches(), *sketched.batches()]:
                if compiled:
                    step({"x": batch})
                else:
                    with recorder.step({"x": batch}):
                        sketched.step(batch, *built)
    assert step.compiled >= 2, step.reason
    one, other = ([r.digest() for r in Transcript.open(tmp_path / name).records()] for name in ("False", "True"))
    assert one == other


@needs_mkl
def test_where_a_sketch_fails_the_prover_makes_the_log(run: Path, tmp_path: Path) -> None:
    key = key_of(run)
    poor = forge(run, tmp_path / "run", at_step(2, lambda _, fields: fields.update(rounding=garbage(fields))), key=key)
    result = replay(poor, env=ELSEWHERE)
    assert (result.verdict, result.steps) == ("inconclusive", (0, 2))
    (finding,) = [each for each in result.findings if each.id == "replay.sketch.failed"]
    assert (finding.severity, "weighbridge regenerate RUN --steps 2:4" in finding.message) == ("warning", True)
    assert regenerate(poor, key, steps=(2, 3)).logged > 0
    assert replay(poor, env=ELSEWHERE).verdict == "match"


# -- hostile -----------------------------------------------------------------------------------------------------------


def _resized(by: int) -> Callable[[dict[str, Any]], bytes]:
    def change(fields: dict[str, Any]) -> bytes:
        named = fields["rounding"]
        size = int.from_bytes(named[HEADER - 8 : HEADER], "little")
        body = (named[HEADER : HEADER + size] + bytes(max(0, by)))[: size + by]
        return bytes(named[: HEADER - 8] + (size + by).to_bytes(8, "little") + body + named[HEADER + size :])

    return change


@pytest.mark.finding("replay.sketch.malformed")
@pytest.mark.parametrize(
    "change",
    [
        _resized(-1),
        _resized(9),
        lambda fields: b"",
        lambda fields: b"WBSK\x02" + fields["rounding"][5:],
        lambda fields: MAGIC + b"\xff" + fields["rounding"][6:],
        lambda fields: fields["rounding"][: HEADER - 8] + b"\xff" * 8 + fields["rounding"][HEADER:],
    ],
    ids=["cut", "longer", "empty", "version", "scale", "size"],
)
def test_sketches_that_break_the_rules_are_refused(
    run: Path, tmp_path: Path, change: Callable[[dict[str, Any]], bytes]
) -> None:
    forged = forge(run, tmp_path / "run", at_step(1, lambda _, fields: fields.update(rounding=change(fields))))
    result = replay_here(forged)
    assert result["verdict"] == "mismatch"
    # Sketches of another size may be found out as false ones before they end.
    assert ids(result["findings"]) & {"replay.sketch.malformed", "replay.sketch.false"}


@pytest.mark.finding("replay.sketch.false")
def test_sketches_of_other_outputs_are_found_where_nothing_differs(run: Path, tmp_path: Path) -> None:
    """On the machine that recorded, each sketch is looked at with a probability that the Prover cannot foresee."""
    named = Transcript.open(run).named_log(3)
    forged = forge(run, tmp_path / "run", lambda step, _, fields: fields.update(rounding=named) if step else None)
    results = [replay_here(forged) for _ in range(8)]
    caught = [each for each in results if each["verdict"] == "mismatch"]
    assert caught, f"some 20 sketches, each looked at once in {LOOKS}"
    assert all(ids(each["findings"]) == {"replay.sketch.false"} for each in caught)
    assert all(each["verdict"] == "match" for each in results if each not in caught), "no results depend on them"


@needs_mkl
@pytest.mark.finding("replay.sketch.failed")
def test_a_sketch_of_elements_that_are_not_contested_brings_in_nothing(run: Path, tmp_path: Path) -> None:
    """A Prover who wants other values than a conforming device can have, and says so by a sketch."""
    forged = forge(run, tmp_path / "run", at_step(1, lambda _, fields: fields.update(rounding=_shifted(fields))))
    result = replay(forged, env=ELSEWHERE)
    assert result.verdict in ("inconclusive", "mismatch")
    assert ids(result.findings) & {"replay.sketch.failed", "replay.sketch.false"}
    assert result.followed == 0


def _shifted(fields: dict[str, Any]) -> bytes:
    """Sketches that differ from the true ones by that of one element each: sums are linear."""
    reader, log = split(fields["rounding"])
    writer, body = SketchWriter(), fields["rounding"][HEADER : len(fields["rounding"]) - len(log)]
    one = np.zeros(128 * 400, dtype=np.int16)
    one[17] = 1
    writer.add(one)
    other = writer.finish(b"")[HEADER:]
    changed = bytes(a ^ b for a, b in zip(body, other, strict=False)) + body[len(other) :]
    assert reader.left
    return bytes(fields["rounding"][:HEADER] + changed + log)


def test_a_record_with_sketches_has_a_digest_of_its_outputs(run: Path, tmp_path: Path) -> None:
    said = Transcript.open(run).step(1).to_map()
    for wrong in ({"outputs": b""}, {"sketches": 2}, {"sketches": True}, {"sketches": 0, "logged": 1}):
        with pytest.raises(FormatError, match=r"sketches|malformed|log entries"):
            StepRecord.from_map({name: value for name, value in (said | wrong).items() if value not in (b"", 0)})
    shutil.copytree(run, tmp_path / "run")
    rewrite(tmp_path / "run", lambda record: dataclasses.replace(record, sketches=0))
    with pytest.raises(TranscriptError, match="kind of rounding logs"):
        Transcript.open(tmp_path / "run")
