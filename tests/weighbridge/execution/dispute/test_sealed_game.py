"""The game inside a sealed worker: honest claims win, false ones are found, and who shows nothing forfeits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.disputed import STEP, Party, cheat, judge_here, record
from support.forging import forge
from support.recording_store import RecordingStore
from support.sealed_disputes import Setting, claim_of
from support.workers_here import workers_here

from weighbridge.attest.sealed_ruling import CLASSES, VERDICTS
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ReplayWorkerError
from weighbridge.execution.dispute import asking, moves, sealed_files
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.messages import Answer, body_of
from weighbridge.execution.dispute.sealed_game import Played, play
from weighbridge.numerics.slices.table import Class
from weighbridge.transcript.tape import Tape

OP = 21
BOTH = (CHALLENGER, DEFENDER)


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Path:
    return recordings.get("disputed", record)


@pytest.fixture(scope="module")
def liar(run: Path) -> Party:
    return cheat(run, OP)


@pytest.fixture
def setting() -> Setting:
    return Setting()


def opener(run: Path, step: int, leaf: int) -> bytes | None:
    return asking.trace(run, step, place=leaf).opening


def played(setting: Setting, *files: Path | None) -> Played:
    with workers_here():
        return play(setting.terms, (files[0], files[1]), opener, judge_here)


@pytest.mark.parametrize("lies", BOTH)
def test_an_honest_party_wins_and_a_liar_is_false(
    run: Path, liar: Party, setting: Setting, tmp_path: Path, lies: int
) -> None:
    """The liar claims the leaves of a training in which it changed an operation, and its run shows the operands."""
    claims = [claim_of(liar if party == lies else Party(run)) for party in BOTH]
    given = [setting.given(tmp_path / str(party), run, claims[party]) for party in BOTH]
    found = played(setting, *given)
    assert found.verdicts == {lies: "false", 1 - lies: "admissible"}
    assert found.leaf == OP + 1
    with workers_here():
        assert asking.class_of(found.tape, found.leaf) in CLASSES
        assert asking.class_of(found.tape, 0) == "step"


def test_a_record_that_a_copy_of_the_run_refutes_is_false(
    run: Path, liar: Party, setting: Setting, tmp_path: Path
) -> None:
    """The challenger disputes the defender's own record, of which it has a copy."""
    auditor = claim_of(Party(run, record=liar.record), own=False)
    given = [setting.given(tmp_path / "0", run, auditor), setting.given(tmp_path / "1", run, claim_of(liar))]
    assert played(setting, *given).verdicts == {CHALLENGER: "admissible", DEFENDER: "false"}


def test_a_forged_run_is_false_with_the_images_own_software(run: Path, setting: Setting, tmp_path: Path) -> None:
    """The forger's machine makes the leaves up to where its own record is false, as the worker would."""

    def change(step: int, _: Tape, fields: dict[str, Any]) -> None:
        if step == STEP:
            sums = bytearray(fields["checksums"])
            sums[8 * 5] ^= 1
            fields["checksums"] = bytes(sums)

    forged = forge(run, tmp_path / "forged", change)
    given = []
    with workers_here():
        for name, each, own in (("0", forged, False), ("1", forged, True)):
            claim = moves.challenge(asking.trace(each, STEP), STEP, own=own)
            given.append(setting.given(tmp_path / name, each, claim))
    assert played(setting, *given).verdicts == {DEFENDER: "false"}


def test_equal_claims_are_no_dispute(run: Path, setting: Setting, tmp_path: Path) -> None:
    given = [setting.given(tmp_path / str(party), run, claim_of(Party(run))) for party in BOTH]
    found = played(setting, *given)
    assert (found.verdicts, found.leaf) == ({DEFENDER: "admissible"}, None)


@pytest.mark.parametrize("silent", [(0,), (1,), (0, 1)])
def test_silence_is_forfeit(run: Path, setting: Setting, tmp_path: Path, silent: tuple[int, ...]) -> None:
    given = [
        None if party in silent else setting.given(tmp_path / str(party), run, claim_of(Party(run))) for party in BOTH
    ]
    assert played(setting, *given).verdicts == dict.fromkeys(silent, "forfeit")


def no_claim(files: Path) -> None:
    (files / sealed_files.CLAIM).unlink()


def garbage(files: Path) -> None:
    (files / sealed_files.CLAIM).write_bytes(b"\xff" * 40)


def another_message(files: Path) -> None:
    (files / sealed_files.CLAIM).write_bytes(body_of(Answer(record=b"", log=bytes(32), leaves=b"")))


def another_step(files: Path) -> None:
    said = sealed_files.claim(files)
    (files / sealed_files.CLAIM).write_bytes(body_of(replace(said, step=STEP - 1)))


def another_subject(files: Path) -> None:
    subject = bytearray((files / sealed_files.SUBJECT).read_bytes())
    subject[-1] ^= 1
    (files / sealed_files.SUBJECT).write_bytes(subject)


def forged_supplement(files: Path) -> None:
    said = sealed_files.claim(files)
    (files / sealed_files.CLAIM).write_bytes(body_of(replace(said, supplements=[b"none"])))


@pytest.mark.parametrize("party", BOTH)
@pytest.mark.parametrize(
    "change", [no_claim, garbage, another_message, another_step, another_subject, forged_supplement]
)
def test_who_gives_something_else_than_its_claim_forfeits(
    run: Path, setting: Setting, tmp_path: Path, change: Callable[[Path], None], party: int
) -> None:
    given = [setting.given(tmp_path / str(each), run, claim_of(Party(run))) for each in BOTH]
    change(given[party])
    assert played(setting, *given).verdicts == {party: "forfeit"}


def no_run(files: Path) -> None:
    shutil.rmtree(files / sealed_files.RUN)


def other_bytes(files: Path) -> None:
    """Operands that are not those of the agreed memory: the checkpoint has other bytes."""
    for path in (files / sealed_files.RUN / "checkpoints").iterdir():
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.unlink()
        path.write_bytes(data)
    for path in (files / sealed_files.RUN / "batches").iterdir():
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.unlink()
        path.write_bytes(data)


def no_manifest(files: Path) -> None:
    (files / sealed_files.RUN / "manifest.json").unlink()


@pytest.mark.parametrize("change", [no_run, other_bytes, no_manifest])
@pytest.mark.parametrize("party", BOTH)
def test_a_run_that_does_not_show_the_operands_forfeits(
    run: Path, liar: Party, setting: Setting, tmp_path: Path, change: Callable[[Path], None], party: int
) -> None:
    """The claim of the other party is judged all the same."""
    claims = [claim_of(liar if each == party else Party(run)) for each in BOTH]
    given = [setting.given(tmp_path / str(each), run, claims[each]) for each in BOTH]
    change(given[party])
    assert played(setting, *given).verdicts == {party: "forfeit", 1 - party: "admissible"}


@pytest.mark.parametrize("party", BOTH)
def test_a_run_that_this_worker_cannot_execute_is_undecided(
    run: Path, liar: Party, setting: Setting, tmp_path: Path, party: int
) -> None:
    """For want of memory or time, or because its process died; what the other party claims is judged all the same."""
    claims = [claim_of(Party(run) if each == party else liar) for each in BOTH]
    given = [setting.given(tmp_path / str(each), run, claims[each]) for each in BOTH]

    def short(at: Path, step: int, leaf: int) -> bytes | None:
        if at.is_relative_to(given[party]):
            raise ReplayWorkerError("the replay worker ended")
        return opener(at, step, leaf)

    with workers_here():
        found = play(setting.terms, (given[0], given[1]), short, judge_here)
    assert found.verdicts == {party: "undecided", 1 - party: "false"}


def test_runs_of_other_programs_are_no_dispute(run: Path, setting: Setting, tmp_path: Path) -> None:
    claim = claim_of(Party(run))
    given = [
        setting.given(tmp_path / "0", run, claim),
        setting.given(tmp_path / "1", run, replace(claim, terms=cbor({"seed": 1}))),
    ]
    assert played(setting, *given).verdicts == dict.fromkeys(BOTH, "undecided")


def test_a_confidential_run_is_disputed_with_one_that_is_not(
    recordings: RecordingStore, run: Path, setting: Setting, tmp_path: Path
) -> None:
    """That a run is confidential is no matter of what its steps compute."""
    secret = recordings.get("disputed-confidential", partial(record, confidential=True))
    given = [
        setting.given(tmp_path / "0", run, claim_of(Party(run))),
        setting.given(tmp_path / "1", secret, claim_of(Party(secret))),
    ]
    assert played(setting, *given).verdicts == {DEFENDER: "admissible"}


def test_a_ruling_can_say_each_verdict_and_each_class() -> None:
    assert set(VERDICTS) == {"none", *asking.VERDICTS}
    assert set(CLASSES) == {"none", *Class.__args__, asking.WHOLE, asking.STEP}  # type: ignore[attr-defined]
