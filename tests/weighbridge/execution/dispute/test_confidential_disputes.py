"""Ordinary referees refuse disputes of confidential runs by name, and parties are stopped before anything leaves."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import disputed
from support.command_line import answer, fails, weighbridge
from support.disputed import STEP, Party, judge_here
from support.recording_store import RecordingStore
from support.workers_here import workers_here

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import cbor
from weighbridge.core.errors import UsageError
from weighbridge.execution.dispute import asking, confidential, moves
from weighbridge.execution.dispute.confidential import ConfidentialDisputeError
from weighbridge.execution.dispute.docket import Docket
from weighbridge.execution.dispute.messages import START, Challenge, Course, signed
from weighbridge.execution.dispute.notices import Notice
from weighbridge.execution.dispute.refereeing import Referee
from weighbridge.numerics.units.orders import MOST
from weighbridge.transcript.confidential_runs import CONFIDENTIAL, is_confidential
from weighbridge.transcript.reader import Transcript

KEYS = (SigningKey.generate(), SigningKey.generate())
REFEREE = SigningKey.generate()


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Path:
    return recordings.get("disputed", disputed.record)


@pytest.fixture(scope="module")
def secret(recordings: RecordingStore) -> Path:
    return recordings.get("disputed-confidential", partial(disputed.record, confidential=True))


def test_a_run_says_that_it_is_confidential_in_its_draft(run: Path, secret: Path) -> None:
    assert [is_confidential(Transcript.open(each).draft) for each in (run, secret)] == [False, True]
    told = [Party(each).tree()[0].terms for each in (run, secret)]
    assert [confidential.is_marked(each) for each in told] == [False, True]
    assert confidential.unmarked(told[1]) == told[0] == confidential.unmarked(told[0])
    assert [confidential.is_marked(each) for each in (b"", b"\xff", cbor([1]), cbor({"confidential": 1}))] == [
        False
    ] * 4
    assert confidential.unmarked(b"\xff") == b"\xff"


def opening(secret: Path, kind: str) -> Challenge | Course:
    told = Party(secret).tree()[0]
    if kind == "course":
        return Course(terms=told.terms, states=bytes(64), inputs=bytes(64))
    return moves.challenge(told, STEP, own=kind == "own")


@pytest.mark.finding("dispute.confidential")
@pytest.mark.parametrize("kind", ["own", "theirs", "course"])
def test_an_ordinary_referee_refuses_them_and_keeps_nothing(secret: Path, tmp_path: Path, kind: str) -> None:
    """Whatever the party's own software does, and in whichever way the dispute begins."""
    message = signed(START, opening(secret, kind), KEYS[0])
    docket = Docket(tmp_path / "docket", REFEREE, {each.public: "lab" for each in KEYS}, judge=judge_here)
    notice = Notice(referee=REFEREE.public, defender=KEYS[1].public, challenge=message.head).signed(KEYS[0])
    with pytest.raises(ConfidentialDisputeError, match="weighbridge dispute sealed"):
        docket.open(notice, message.data)
    assert list((tmp_path / "docket").iterdir()) == []
    referee = Referee((KEYS[0].public, KEYS[1].public), REFEREE, judge=judge_here)
    with pytest.raises(ConfidentialDisputeError):
        referee.post(message.data)
    assert not referee.dispute.messages


def test_a_course_that_is_answered_with_a_confidential_one_is_refused(run: Path, secret: Path) -> None:
    referee = Referee((KEYS[0].public, KEYS[1].public), REFEREE, judge=judge_here)
    referee.post(signed(START, opening(run, "course"), KEYS[0]).data)
    with pytest.raises(ConfidentialDisputeError):
        referee.post(signed(referee.dispute.head, opening(secret, "course"), KEYS[1]).data)
    assert len(referee.dispute.messages) == 1


@pytest.mark.parametrize("by_course", [False, True])
def test_commands_stop_a_party_before_anything_leaves(run: Path, secret: Path, tmp_path: Path, by_course: bool) -> None:
    """And who declines shows nothing, and loses nothing."""
    keys: list[Path] = []
    for name in ("mine", "theirs", "referee"):
        assert weighbridge("rules", "key", tmp_path / name)[0] == 0
        keys.append(tmp_path / name)
    mine, theirs, referee = keys
    step: tuple[Any, ...] = ("--own",) if by_course else ("--own", "--step", STEP)
    file, never = tmp_path / "dispute", tmp_path / "never"
    with workers_here():
        code, _, said = weighbridge("dispute", "open", secret, *step, "--key", mine, "--out", never)
        assert (code, "weighbridge dispute sealed" in said) == (2, True)
        assert not never.exists()
        answer("dispute", "open", run, *step, "--key", mine, "--out", file)
        before = file.read_bytes()
        assert fails("dispute", "answer", file, secret, "--key", theirs) == "dispute.confidential"
        assert file.read_bytes() == before
        answer("dispute", "answer", file, secret, "--key", theirs, "--decline")
        assert len(file.read_bytes()) - len(before) < 400
        ruled = answer("dispute", "judge", file, "--key", referee)
        assert {(c["verdict"], c["code"]) for c in ruled["claims"]} == {("undecided", "dispute.ground")}
        assert answer("dispute", "verify", file)["agrees"]


@pytest.mark.parametrize("due", ["opening", "parts", "challenge", "nothing"])
def test_who_took_part_cannot_decline(due: str) -> None:
    with pytest.raises(UsageError):
        moves.declined(due)


def test_the_mark_is_read_beside_as_many_orders_as_a_draft_may_have() -> None:
    orders = {f"bf16 1x16x{at + 1}": 16 for at in range(MOST)}
    assert confidential.is_marked(cbor({"seed": 1, "orders": orders, CONFIDENTIAL: True}))
    assert not confidential.is_marked(cbor({"seed": 1, "orders": orders}))


def test_the_course_of_a_confidential_run_is_marked(secret: Path) -> None:
    with workers_here():
        assert confidential.is_marked(asking.course(secret).terms)
