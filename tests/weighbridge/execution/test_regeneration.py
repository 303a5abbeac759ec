"""Logs on demand: honest Provers regenerate them and are believed on other machines; false supplements are found."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import fsyncs, on_demand
from support.command_line import answer, fails, weighbridge
from support.forging import at_step, forge, rewrite
from support.on_demand import ELSEWHERE, STEPS, copied, flipped, place, regenerated, resigned
from support.recordings import replay_here, train
from torch import Tensor, nn

from weighbridge import ReplayResult, replay
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import Limits, compress, decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import UsageError
from weighbridge.execution import regeneration
from weighbridge.execution.following import DifferenceError, Following
from weighbridge.execution.regeneration import regenerate
from weighbridge.execution.straight_line.frame import Frame
from weighbridge.execution.straight_line.program import Program
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.supplements import Statement, Supplements, decode, folder_of, key_path, supplement_name

needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch multiplies without MKL")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without logs."""
    return on_demand.record(tmp_path_factory.mktemp("bare") / "run")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    """The same run with its logs in full."""
    return Transcript.open(on_demand.record(tmp_path_factory.mktemp("full") / "run", logs="full"))


@pytest.fixture(scope="module")
def supplemented(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and the supplements that its Prover made."""
    there = copied(run, tmp_path_factory.mktemp("supplemented"))
    regenerated(there)
    return there


def judged(run: Path) -> dict[str, Any]:
    """The replay of a run with its supplements, in this process."""
    return replay_here(run, supplements=folder_of(run))


def ids(result: dict[str, Any]) -> set[str]:
    """Findings of a replay, without that on the data, which these runs do not commit to."""
    return {each["id"] for each in result["findings"]} - {"data.not_precommitted"}


# -- honest ------------------------------------------------------------------------------------------------------------


def test_a_match_needs_no_log(run: Path) -> None:
    result = replay_here(run)
    assert (result["verdict"], ids(result), result["logged"]) == ("match", set(), 0)
    assert "roundings" not in result["chosen"]


def test_regenerated_logs_are_those_of_a_recording_in_full(supplemented: Path, full: Transcript) -> None:
    transcript = Transcript.open(supplemented)
    transcript.supplement(folder_of(supplemented))
    assert transcript.supplements is not None
    rounding = [transcript.supplements.rounding(step) for step in range(STEPS + 1)]
    assert rounding == [record.rounding.hex() for record in full.records()]
    assert [record.state for record in transcript.records()] == [record.state for record in full.records()]


@pytest.fixture(scope="module")
def elsewhere(run: Path) -> ReplayResult:
    """A replay on a machine that rounds otherwise, without a log."""
    return replay(run, env=ELSEWHERE)


@needs_mkl
def test_without_a_log_another_machine_says_what_to_regenerate(run: Path, elsewhere: ReplayResult) -> None:
    assert elsewhere.verdict == "inconclusive"
    (finding,) = [each for each in elsewhere.findings if each.id == "replay.log.absent"]
    assert finding.severity == "warning"
    assert f"`weighbridge regenerate RUN --steps 1:{STEPS + 1}`" in finding.message
    assert Transcript.open(run).draft["device"] in finding.message
    assert elsewhere.steps == (0, 1), "nothing from the step that differs on was verified"


@needs_mkl
def test_with_its_log_another_machine_gives_the_same_bits(supplemented: Path, full: Transcript) -> None:
    result = replay(supplemented, env=ELSEWHERE)
    assert result.verdict == "match"
    assert result.state == full.step(STEPS).state.hex()
    assert 0 < result.followed <= result.logged == sum(record.logged for record in full.records())
    assert result.chosen == replay(full.path, env=ELSEWHERE).chosen, "the ledger counts a supplement as it does a log"
    assert result.chosen["roundings"]["bits"] > 0


def test_some_steps_begin_at_the_checkpoint_before_them(run: Path, tmp_path: Path) -> None:
    there, told = copied(run, tmp_path), list[tuple[int, int]]()
    done = regenerated(there, steps=(2, 3), progress=lambda *each: told.append(each))
    assert (done.steps, done.written) == ((2, 3), 1)
    assert told == [(1, 2), (2, 2)], "from checkpoint 1 on"
    assert [each.name for each in folder_of(there).iterdir()] == ["00000002.wsup"]


def test_a_second_time_nothing_is_written_anew(supplemented: Path) -> None:
    before = {each: each.stat().st_mtime_ns for each in folder_of(supplemented).iterdir()}
    assert regenerated(supplemented).written == 0
    assert {each: each.stat().st_mtime_ns for each in folder_of(supplemented).iterdir()} == before


def test_supplements_are_durable_before_they_have_their_names(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, durable = copied(run, tmp_path), fsyncs.watched(monkeypatch)
    regenerated(there, steps=(2, 4))
    files = list(folder_of(there).iterdir())
    assert len(files) == 2
    assert all(each in durable for each in [*files, folder_of(there)])


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_programs_make_the_supplements_that_operations_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: torch.dtype | None
) -> None:
    def build() -> tuple[Any, ...]:
        model = nn.Sequential(nn.Linear(8, 24), nn.LayerNorm(24), nn.Dropout(0.1), nn.GELU(), nn.Linear(24, 3))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with nullcontext() if precision is None else torch.autocast("cpu", precision):
            loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    batches = torch.randn(5, 64, 8, generator=torch.Generator().manual_seed(1))
    train(tmp_path / "run", build, step, batches, every=2, logs="on-demand", device="cpu")
    ran: list[int] = []
    run = Program.run

    def noted(self: Program, frame: Frame, step: int) -> None:
        ran.append(step)
        run(self, frame, step)

    monkeypatch.setattr(Program, "run", noted)
    with_programs = regenerated(tmp_path / "run", steps=(1, 6), out=tmp_path / "programs")
    assert ran, "steps of a structure that was executed before run as programs"
    later = regenerated(tmp_path / "run", steps=(5, 6), out=tmp_path / "later")
    monkeypatch.setattr(regeneration._Repeating, "straight", Following)
    ran.clear()
    without = regenerated(tmp_path / "run", steps=(1, 6), out=tmp_path / "operations")
    assert not ran
    assert with_programs.logged == without.logged > 0
    for number in range(1, 6):
        made = [(folder / supplement_name(number)).read_bytes() for folder in (with_programs.folder, without.folder)]
        assert made[0] == made[1], number
    assert (later.folder / supplement_name(5)).read_bytes() == made[0]


@pytest.mark.parametrize("damage", ["cut", "empty", "log"])
def test_a_damaged_supplement_is_made_anew(supplemented: Path, tmp_path: Path, damage: str) -> None:
    there = copied(supplemented, tmp_path)
    whole = place(there, 2).read_bytes()
    other = cbor({**decode_cbor(whole), "log": compress(b"another log")})
    place(there, 2).write_bytes({"cut": whole[:40], "empty": b"", "log": other}[damage])
    assert regenerated(there).written == 1
    assert place(there, 2).read_bytes() == whole


# -- refusals of regenerate --------------------------------------------------------------------------------------------


@pytest.mark.finding("record.regenerate.device")
def test_another_machine_is_refused_by_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    status, _, said = weighbridge("regenerate", run, "--steps", "1:2")
    assert status == 2
    assert "record.regenerate.device" in said
    assert "nothing more there, MKL_CBWR=COMPATIBLE here" in said
    assert not folder_of(run).exists()


def test_a_run_with_logs_in_full_has_nothing_to_regenerate(full: Transcript) -> None:
    with pytest.raises(UsageError, match="in full"):
        regenerate(full.path, SigningKey.generate())


def test_another_key_is_refused(run: Path) -> None:
    with pytest.raises(UsageError, match="--key"):
        regenerate(run, SigningKey.generate())


def test_a_repeat_that_differs_names_step_and_operation(run: Path, tmp_path: Path) -> None:
    key = SigningKey.generate()

    def lie(_: Any, fields: dict[str, Any]) -> None:
        sums = np.frombuffer(fields["checksums"], dtype="<u8").copy()
        sums[0] ^= np.uint64(1 << 20)
        fields["checksums"] = sums.tobytes()

    forged = forge(run, tmp_path / "run", at_step(2, lie), key=key)
    with pytest.raises(DifferenceError, match=r"step 2, operation 1 \(mm.default\)"):
        regenerate(forged, key)
    assert sorted(each.name for each in folder_of(forged).iterdir()) == ["00000000.wsup", "00000001.wsup"]


@pytest.mark.finding("record.regenerate.differs")
def test_a_second_log_of_a_step_is_not_signed(supplemented: Path, tmp_path: Path) -> None:
    there = copied(supplemented, tmp_path)
    resigned(there, 2, entries=flipped)
    with pytest.raises(UsageError) as refused:
        regenerated(there, steps=(2, 3))
    assert refused.value.reason == "record.regenerate.differs"


# -- false supplements -------------------------------------------------------------------------------------------------


def test_a_changed_entry_is_a_mismatch_at_its_operation(supplemented: Path, tmp_path: Path) -> None:
    there = copied(supplemented, tmp_path)
    resigned(there, 2, entries=flipped)
    result = judged(there)
    assert (result["verdict"], ids(result)) == ("mismatch", {"replay.mismatch"})
    assert (result["first_difference"]["step"], result["first_difference"]["operation"]) == (2, "mm.default")


@needs_mkl
def test_an_entry_left_out_is_found_where_it_decides(supplemented: Path, tmp_path: Path) -> None:
    there = copied(supplemented, tmp_path)
    resigned(there, 1, entries=lambda each: None)
    result = replay(there, env=ELSEWHERE)
    assert result.verdict in ("mismatch", "inconclusive")
    assert result.first_difference is not None
    assert result.first_difference["step"] == 1


@pytest.mark.parametrize(
    ("said", "word"),
    [
        pytest.param(lambda s: replace(s, draft="ab" * 32), "another run", id="draft"),
        pytest.param(lambda s: replace(s, state="ab" * 32), "the state after it", id="state"),
        pytest.param(lambda s: replace(s, before="ab" * 32), "the state before it", id="before"),
        pytest.param(lambda s: replace(s, outputs="ab" * 32), "the rounded outputs", id="outputs"),
        pytest.param(lambda s: replace(s, step=3), "step 3", id="another step"),
        pytest.param(lambda s: replace(s, step=99), "step 99", id="no such step"),
    ],
)
@pytest.mark.finding("transcript.supplement.foreign")
def test_what_belongs_elsewhere_is_refused(
    supplemented: Path, tmp_path: Path, said: Callable[[Statement], Statement], word: str
) -> None:
    there = copied(supplemented, tmp_path)
    resigned(there, 2, said=said)
    result = judged(there)
    assert ids(result) == {"transcript.supplement.foreign"}
    (finding,) = [each for each in result["findings"] if each["id"] == "transcript.supplement.foreign"]
    assert word in finding["message"]
    assert finding["subject"] == "00000002.wsup"
    assert result["logged"] < sum(each.logged for each in statements(supplemented)), "it was not followed"


def statements(run: Path) -> list[Statement]:
    return [decode(each.read_bytes()).statement for each in sorted(folder_of(run).iterdir())]


@pytest.mark.finding("transcript.supplement.signature")
def test_a_supplement_of_another_key_is_refused(supplemented: Path, tmp_path: Path) -> None:
    there = copied(supplemented, tmp_path)
    resigned(there, 2, key=SigningKey.generate())
    assert ids(judged(there)) == {"transcript.supplement.signature"}


@pytest.mark.finding("transcript.supplement.equivocation")
def test_two_logs_of_one_step_accuse_the_prover(supplemented: Path, tmp_path: Path) -> None:
    there = copied(supplemented, tmp_path)
    resigned(there, 2, entries=flipped, out=folder_of(there) / "another.wsup")
    result = judged(there)
    assert ids(result) == {"transcript.supplement.equivocation"}
    (finding,) = [each for each in result["findings"] if each["id"] == "transcript.supplement.equivocation"]
    assert (finding["severity"], finding["subject"]) == ("violation", "step 2")


def test_the_same_log_twice_accuses_nobody(supplemented: Path, tmp_path: Path) -> None:
    there = copied(supplemented, tmp_path)
    resigned(there, 2, out=folder_of(there) / "again.wsup")
    assert (judged(there)["verdict"], ids(judged(there))) == ("match", set())


@pytest.mark.parametrize("cut", [0, 1, 40, -1])
@pytest.mark.finding("transcript.supplement.malformed")
def test_a_cut_off_file_is_not_used(supplemented: Path, tmp_path: Path, cut: int) -> None:
    there = copied(supplemented, tmp_path)
    file = place(there, 2)
    file.write_bytes(file.read_bytes()[:cut])
    result = judged(there)
    assert (result["verdict"], ids(result)) == ("match", {"transcript.supplement.malformed"}), "a match needs no log"


def test_a_link_and_a_pipe_are_not_read(supplemented: Path, tmp_path: Path) -> None:
    there = copied(supplemented, tmp_path)
    place(there, 2).unlink()
    place(there, 2).symlink_to(place(supplemented, 2))
    place(there, 3).unlink()
    os.mkfifo(place(there, 3))
    result = judged(there)
    assert (result["verdict"], ids(result)) == ("match", {"transcript.supplement.malformed"})


def test_a_huge_file_is_not_read(supplemented: Path, tmp_path: Path) -> None:
    """A sparse file of a terabyte; and one just over the limit, which is given here."""
    there = copied(supplemented, tmp_path)
    with place(there, 2).open("r+b") as file:
        file.truncate(1 << 40)
    assert ids(judged(there)) == {"transcript.supplement.malformed"}
    transcript = Transcript.open(supplemented)
    size = place(supplemented, 2).stat().st_size
    found = Supplements(
        folder_of(supplemented), transcript.draft_digest, transcript.manifest.public, transcript.step,
        transcript.steps, Limits(rounding=size - 1),
    )  # fmt: skip
    assert found.rounding(2) is None
    assert f"it has {size} bytes" in " ".join(each.message for each in found.findings)


def test_a_directory_of_far_too_many_files_is_refused(supplemented: Path, tmp_path: Path) -> None:
    there = copied(supplemented, tmp_path)
    for number in range(100):
        (folder_of(there) / f"{number}.more").touch()
    with pytest.raises(Exception, match="more than 80 entries"):
        judged(there)


def test_a_claim_of_more_entries_than_elements_is_not_followed(supplemented: Path, tmp_path: Path) -> None:
    there = copied(supplemented, tmp_path)
    resigned(there, 2, said=lambda s: replace(s, logged=1 << 40))
    result = judged(there)
    assert (result["verdict"], ids(result)) == ("match", {"transcript.supplement.malformed"})


# -- a Prover who commits to what it did not compute -------------------------------------------------------------------


def falsely(change: Callable[[StepRecord], StepRecord]) -> Callable[[StepRecord], StepRecord]:
    return lambda record: change(record) if record.step == 2 else record


def test_a_made_up_digest_is_a_mismatch_of_its_step(run: Path, tmp_path: Path) -> None:
    there = copied(run, tmp_path)
    rewrite(there, falsely(lambda record: replace(record, outputs=bytes(32))))
    result = replay_here(there)
    assert (result["verdict"], ids(result)) == ("mismatch", {"replay.mismatch"})
    assert (result["first_difference"]["step"], result["first_difference"]["operation"]) == (2, "outputs")


def test_a_result_that_no_rounding_explains_is_a_mismatch_of_its_operation(run: Path, tmp_path: Path) -> None:
    """The gradient of the mean has no element next to a boundary, so no log could make it another."""

    def lie(record: StepRecord) -> StepRecord:
        sums = np.frombuffer(record.checksums, dtype="<u8").copy()
        sums[-1] ^= np.uint64(1 << 20)
        return replace(record, checksums=sums.tobytes())

    there = copied(run, tmp_path)
    rewrite(there, falsely(lie))
    result = replay_here(there)
    assert result["verdict"] == "mismatch"
    assert result["first_difference"]["step"] == 2
    assert ids(result) == {"replay.mismatch"}


def test_a_result_that_a_rounding_might_explain_verifies_nothing(run: Path, tmp_path: Path) -> None:
    def lie(record: StepRecord) -> StepRecord:
        sums = np.frombuffer(record.checksums, dtype="<u8").copy()
        sums[0] ^= np.uint64(1 << 20)
        return replace(record, checksums=sums.tobytes())

    there = copied(run, tmp_path)
    rewrite(there, falsely(lie))
    result = replay_here(there)
    assert (result["verdict"], ids(result)) == ("inconclusive", {"replay.log.absent"})
    assert "which this is, so that it should have matched" in result["findings"][0]["message"]


def test_a_step_cannot_hide_that_it_has_no_log(run: Path, tmp_path: Path) -> None:
    there = copied(run, tmp_path)
    rewrite(there, falsely(lambda record: replace(record, outputs=b"")))
    with pytest.raises(Exception, match="does not have the kind of rounding logs that the draft names"):
        replay_here(there)


@needs_mkl
def test_supplements_may_lie_elsewhere(supplemented: Path, tmp_path: Path) -> None:
    shutil.copytree(supplemented, tmp_path / "run")
    assert replay(tmp_path / "run", env=ELSEWHERE).verdict == "inconclusive"
    assert replay(tmp_path / "run", env=ELSEWHERE, supplements=folder_of(supplemented)).verdict == "match"


def test_the_command_says_what_it_made(run: Path, tmp_path: Path) -> None:
    there = copied(run, tmp_path)
    said = answer("regenerate", there, "--steps", "2:4")
    assert (said["steps"], said["written"], said["folder"]) == ([2, 4], 2, str(folder_of(there.resolve())))
    assert said["bytes"] == sum(each.stat().st_size for each in folder_of(there).iterdir())
    status, out, _ = weighbridge("regenerate", there, "--steps", "2:4")
    assert (status, "0 of 2 files new" in out) == (0, True)
    key_path(there).unlink()
    assert fails("regenerate", there) == "usage"
