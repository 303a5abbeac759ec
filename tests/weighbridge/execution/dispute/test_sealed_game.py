"""The game inside a sealed worker: honest claims win, false ones are found, and who shows nothing forfeits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.disputed import STEP, Party, cheat, judge_here, record
from support.forging import forge
from support.recording_store import RecordingStore
from support.sealed_disputes import Setting, claim_of, fitting
from support.workers_here import workers_here

from weighbridge.attest.manifest import SigningKey
from weighbridge.attest.sealed_dispute import PARTIES
from weighbridge.attest.sealed_ruling import CLASSES, VERDICTS
from weighbridge.attest.sealed_subject import Subject
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import ReplayWorkerError
from weighbridge.execution.dispute import asking, moves, sealed_files
from weighbridge.execution.dispute.asking import Judgement
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.messages import Answer, Challenge, body_of
from weighbridge.execution.dispute.recorded import recorded
from weighbridge.execution.dispute.sealed_game import Played, Processes, play
from weighbridge.numerics.slices.table import Class
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.writer import MANIFEST

OP = 21
BOTH = (CHALLENGER, DEFENDER)


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Path:
    return recordings.get("disputed", record)


@pytest.fixture(scope="module")
def liar(run: Path) -> Party:
    return cheat(run, OP)


@pytest.fixture(scope="module")
def lying(run: Path, liar: Party, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitting(run, tmp_path_factory.mktemp("lying") / "run", liar)


def opened(party: int, run: Path, step: int, leaf: int) -> bytes | None:
    return asking.trace(run, step, place=leaf).opening


HERE = Processes(
    record=lambda party, run, step: recorded(run, step), opening=opened,
    judge=lambda party, claim, opening: judge_here(claim, opening),
)  # fmt: skip


def played(setting: Setting, *files: Path | None, processes: Processes = HERE) -> Played:
    with workers_here():
        return play(setting.terms, (files[0], files[1]), processes)


@dataclass
class Sides:
    """Both parties' files, one of whom may lie.

    Attributes:
        setting: What they agreed on.
        given: What they give.
    """

    setting: Setting
    given: list[Path]

    @classmethod
    def of(cls, at: Path, runs: tuple[Path, Path], claims: list[Challenge], **changed: Any) -> Sides:
        setting = Setting(runs, changed=changed)
        return cls(setting, [setting.given(at / str(p), runs[p], claims[p]) for p in BOTH])

    def played(self, processes: Processes = HERE) -> Played:
        return played(self.setting, *self.given, processes=processes)


@pytest.fixture
def honest(run: Path, tmp_path: Path) -> Sides:
    return Sides.of(tmp_path, (run, run), [claim_of(Party(run)) for _ in BOTH])


@pytest.fixture(params=BOTH)
def lied(request: Any, run: Path, lying: Path, liar: Party, tmp_path: Path) -> tuple[int, Sides]:
    """A dispute between two trainings, in which this party has a false record, and stands by it."""
    lies = request.param
    runs = (lying, run) if lies == CHALLENGER else (run, lying)
    claims = [claim_of(liar if party == lies else Party(run)) for party in BOTH]
    return lies, Sides.of(tmp_path, runs, claims)


def test_an_honest_party_wins_and_a_liar_is_false(lied: tuple[int, Sides]) -> None:
    """The liar claims the leaves of a training in which it changed an operation, and its run shows the operands."""
    lies, sides = lied
    found = sides.played()
    assert found.verdicts == {lies: "false", 1 - lies: "admissible"}
    assert found.leaf == OP + 1
    with workers_here():
        assert asking.class_of(found.tape, found.leaf) in CLASSES
        assert asking.class_of(found.tape, 0) == "step"


def test_a_record_that_a_copy_of_the_run_refutes_is_false(run: Path, lying: Path, liar: Party, tmp_path: Path) -> None:
    """The challenger disputes the defender's own record, of which it has a copy: both stand by one transcript."""
    auditor = claim_of(Party(run, record=liar.record), own=False)
    sides = Sides.of(tmp_path, (lying, lying), [auditor, claim_of(liar)])
    assert sides.played().verdicts == {CHALLENGER: "admissible", DEFENDER: "false"}


def test_a_forged_run_is_false_with_the_images_own_software(run: Path, tmp_path: Path) -> None:
    """The forger's machine makes the leaves up to where its own record is false, as the worker would."""

    def change(step: int, _: Tape, fields: dict[str, Any]) -> None:
        if step == STEP:
            sums = bytearray(fields["checksums"])
            sums[8 * 5] ^= 1
            fields["checksums"] = bytes(sums)

    forged = forge(run, tmp_path / "forged", change)
    with workers_here():
        claims = [moves.challenge(asking.trace(forged, STEP), STEP, own=own) for own in (False, True)]
    assert Sides.of(tmp_path, (forged, forged), claims).played().verdicts == {DEFENDER: "false"}


def test_equal_claims_are_no_dispute(honest: Sides) -> None:
    found = honest.played()
    assert (found.verdicts, found.leaf) == ({DEFENDER: "admissible"}, None)


@pytest.mark.parametrize("silent", [(0,), (1,), (0, 1)])
def test_silence_is_forfeit(honest: Sides, silent: tuple[int, ...]) -> None:
    given = [None if party in silent else honest.given[party] for party in BOTH]
    assert played(honest.setting, *given).verdicts == dict.fromkeys(silent, "forfeit")


def no_run(files: Path) -> None:
    shutil.rmtree(files / sealed_files.RUN)


def no_manifest(files: Path) -> None:
    (files / sealed_files.RUN / MANIFEST).unlink()


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


def no_transcripts_in_the_subject(files: Path) -> None:
    (files / sealed_files.SUBJECT).write_bytes((files / sealed_files.SUBJECT).read_bytes()[:40])


def too_large_a_claim(files: Path) -> None:
    """What the process that has the keys would have to decode."""
    with (files / sealed_files.CLAIM).open("r+b") as file:
        file.truncate(sealed_files.MAX_CLAIM + 1)


def forged_supplement(files: Path) -> None:
    said = sealed_files.claim(files)
    (files / sealed_files.CLAIM).write_bytes(body_of(replace(said, supplements=[b"none"])))


def other_bytes(files: Path) -> None:
    """Operands that are not those of the agreed memory: the checkpoint has other bytes."""
    for folder in ("checkpoints", "batches"):
        for path in (files / sealed_files.RUN / folder).iterdir():
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.unlink()
            path.write_bytes(data)


def another_record(files: Path) -> None:
    """One that the transcript lacks: its party would stand by it here, and by the transcript elsewhere."""
    made = StepRecord.from_cbor(sealed_files.claim(files).record)
    altered(files, record=replace(made, rounded=made.rounded + 1).to_cbor())


def another_program(files: Path) -> None:
    altered(files, tape=b"none")


def another_state(files: Path) -> None:
    altered(files, state=bytes(32))


def other_terms(files: Path) -> None:
    altered(files, terms=cbor({"seed": 1}))


def another_draft(files: Path) -> None:
    altered(files, draft=bytes(32))


def altered(files: Path, **changed: Any) -> None:
    (files / sealed_files.CLAIM).write_bytes(body_of(replace(sealed_files.claim(files), **changed)))


@pytest.mark.parametrize("party", BOTH)
@pytest.mark.parametrize(
    "change",
    [
        no_claim, garbage, another_message, another_step, another_subject, no_transcripts_in_the_subject,
        too_large_a_claim, forged_supplement, no_run, no_manifest, other_bytes, another_record, another_program,
        another_state, other_terms, another_draft,
    ],
)  # fmt: skip
def test_who_gives_something_else_than_its_claim_forfeits(
    honest: Sides, change: Callable[[Path], None], party: int
) -> None:
    """A claim about anything but its own transcript's record of the step is none; `undecided` would be an escape."""
    change(honest.given[party])
    assert honest.played().verdicts == {party: "forfeit"}


# -- the transcript that both parties agreed on ------------------------------------------------------------------------


def unchanged(step: int, tape: Tape, fields: dict[str, Any]) -> None:
    pass


def exchanged(sides: Sides, party: int, run: Path) -> None:
    """Gives the files of another run, with whatever that run's own claim is."""
    shutil.rmtree(sides.given[party])
    with workers_here():
        claim = moves.challenge(asking.trace(run, STEP), STEP, own=True)
    sides.setting.given(sides.given[party], run, claim)


@pytest.mark.parametrize("party", BOTH)
def test_a_party_with_another_valid_run_than_agreed_forfeits(
    recordings: RecordingStore, run: Path, honest: Sides, party: int, tmp_path: Path
) -> None:
    """The same training under another signature, and a training of another seed: neither is what was disputed."""
    other = recordings.get("disputed-seed", partial(record, seed=8))
    for number, each in enumerate((forge(run, tmp_path / "again", unchanged), other)):
        exchanged(honest, party, each)
        assert honest.played().verdicts == {party: "forfeit"}, number


def test_a_liar_does_not_escape_with_an_honest_run(lied: tuple[int, Sides], run: Path, tmp_path: Path) -> None:
    """It stands by a false transcript, and would show another one, of which every leaf follows."""
    lies, sides = lied
    exchanged(sides, lies, forge(run, tmp_path / "honest", unchanged))
    assert sides.played().verdicts == {lies: "forfeit"}


def test_a_liar_does_not_escape_with_honest_leaves_beside_its_own_record(lied: tuple[int, Sides], run: Path) -> None:
    """It can foresee the other party's leaves; its own run does not show the last of them."""
    lies, sides = lied
    altered(sides.given[lies], leaves=claim_of(Party(run)).leaves)
    assert sides.played().verdicts == {lies: "forfeit", 1 - lies: "admissible"}


@pytest.mark.parametrize("own", [True, False])
def test_whose_record_the_challenger_disputes_is_not_its_to_say(lied: tuple[int, Sides], own: bool) -> None:
    """Of a record that it calls the defender's, it would say nothing: both claims would be undecided."""
    lies, sides = lied
    altered(sides.given[CHALLENGER], own=own)
    assert sides.played().verdicts == {lies: "false", 1 - lies: "admissible"}


def test_a_copy_of_the_defenders_run_is_no_record_of_the_challengers(
    run: Path, lying: Path, liar: Party, tmp_path: Path
) -> None:
    """A challenger that forgets to say so is not held to a record that it disputes."""
    auditor = claim_of(Party(run, record=liar.record), own=True)
    sides = Sides.of(tmp_path, (lying, lying), [auditor, claim_of(liar)])
    assert sides.played().verdicts == {CHALLENGER: "admissible", DEFENDER: "false"}


@pytest.mark.parametrize("party", BOTH)
def test_a_transcript_that_another_key_signed_is_forfeit(run: Path, tmp_path: Path, party: int) -> None:
    """Terms say in public whose transcript it is; the subject alone could name one of any key."""
    name = ("challenger_signer", "defender_signer")[party]
    stranger = SigningKey.generate().public
    sides = Sides.of(tmp_path, (run, run), [claim_of(Party(run)) for _ in BOTH], **{name: stranger})
    assert sides.played().verdicts == {party: "forfeit"}


@pytest.mark.parametrize("party", BOTH)
def test_a_manifest_whose_signature_does_not_verify_is_forfeit(run: Path, tmp_path: Path, party: int) -> None:
    """Also if both parties agreed on its digest."""
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    said = json.loads((broken / MANIFEST).read_bytes())
    signature = said["signatures"][0]
    signature["sig"] = "AA" + signature["sig"][2:] if signature["sig"][:2] != "AA" else "BA" + signature["sig"][2:]
    data = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    (broken / MANIFEST).unlink()
    (broken / MANIFEST).write_bytes(data)
    setting = Setting((run, run))
    opens = Subject.opened(setting.subject, setting.terms)
    assert opens is not None
    names: dict[str, Any] = {PARTIES[party]: bytes_digest(data)}
    agreed = replace(opens, **names)
    setting.subject, setting.terms = agreed.to_bytes(), replace(setting.terms, subject=agreed.commitment)
    claim = claim_of(Party(run))
    given = [setting.given(tmp_path / str(each), broken if each == party else run, claim) for each in BOTH]
    assert played(setting, *given).verdicts == {party: "forfeit"}


# -- what a party's processes may take ---------------------------------------------------------------------------------


def dies(*_: Any) -> Any:
    raise ReplayWorkerError("the replay worker ended")


@pytest.mark.parametrize("what", ["opening", "judge"])
def test_a_party_whose_process_dies_forfeits_and_the_other_claim_is_judged(lied: tuple[int, Sides], what: str) -> None:
    """It would escape refutation if that said nothing. That real processes die so, `test_sealed_rulings` shows."""
    lies, sides = lied
    theirs = getattr(HERE, what)
    processes = replace(HERE, **{what: lambda party, *more: (dies if party == lies else theirs)(party, *more)})
    assert sides.played(processes).verdicts == {lies: "forfeit", 1 - lies: "admissible"}


@pytest.mark.parametrize("party", BOTH)
def test_a_party_whose_transcript_takes_its_process_forfeits(honest: Sides, party: int) -> None:
    processes = replace(HERE, record=lambda who, *more: (dies if who == party else HERE.record)(who, *more))
    assert honest.played(processes).verdicts == {party: "forfeit"}


def test_a_judgement_that_a_dead_process_stands_behind_is_forfeit(lied: tuple[int, Sides]) -> None:
    """An ordinary referee says `undecided` of it: there no party agreed on limits."""
    lies, sides = lied
    ended = Judgement("undecided", ReplayWorkerError.code, "the replay worker ended")
    processes = replace(HERE, judge=lambda party, *more: ended if party == lies else HERE.judge(party, *more))
    assert sides.played(processes).verdicts == {lies: "forfeit", 1 - lies: "admissible"}


@pytest.mark.parametrize("what", ["record", "opening", "judge"])
def test_a_machine_that_fails_accuses_no_party(lied: tuple[int, Sides], what: str) -> None:
    def fails(*_: Any) -> Any:
        raise OSError("no process can be started")

    with pytest.raises(OSError, match="no process"):
        lied[1].played(replace(HERE, **{what: fails}))


def test_runs_of_other_programs_are_no_dispute(recordings: RecordingStore, run: Path, tmp_path: Path) -> None:
    """Both parties agreed to dispute a step that their trainings do not begin alike."""
    other = recordings.get("disputed-seed", partial(record, seed=8))
    sides = Sides.of(tmp_path, (run, other), [claim_of(Party(each)) for each in (run, other)])
    assert sides.played().verdicts == dict.fromkeys(BOTH, "undecided")


def test_a_confidential_run_is_disputed_with_one_that_is_not(
    recordings: RecordingStore, run: Path, tmp_path: Path
) -> None:
    """That a run is confidential is no matter of what its steps compute."""
    secret = recordings.get("disputed-confidential", partial(record, confidential=True))
    sides = Sides.of(tmp_path, (run, secret), [claim_of(Party(each)) for each in (run, secret)])
    assert sides.played().verdicts == {DEFENDER: "admissible"}


def test_a_ruling_can_say_each_verdict_and_each_class() -> None:
    assert set(VERDICTS) == {"none", *asking.VERDICTS}
    assert set(CLASSES) == {"none", *Class.__args__, asking.WHOLE, asking.STEP}  # type: ignore[attr-defined]
