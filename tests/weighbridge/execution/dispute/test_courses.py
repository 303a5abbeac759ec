"""Disputes whose step is still to be found: both parties name all their states, and the first that differs counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import disputed
from support.command_line import answer, fails
from support.disputed import STEP, Party, cheat, judge_here, reasons
from support.recording_store import RecordingStore
from support.workers_here import workers_here

from weighbridge.attest.manifest import SigningKey, load_or_create_key
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.dispute import asking, game, moves
from weighbridge.execution.dispute.asking import Traced
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.leaves import NO_INPUT, Leaf
from weighbridge.execution.dispute.messages import (
    START,
    Answer,
    Content,
    Course,
    DisputeError,
    Ruling,
    Shown,
    pack,
    read,
    signed,
    unpack,
)
from weighbridge.execution.dispute.ranges import parting
from weighbridge.execution.dispute.refereeing import Referee, verify
from weighbridge.execution.worker_process import Limits
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord

KEYS = (SigningKey.generate(), SigningKey.generate())
REFEREE = SigningKey.generate()


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Path:
    return recordings.get("disputed", disputed.record)


@pytest.fixture(scope="module")
def liar(run: Path) -> Party:
    return cheat(run, 21)


@pytest.fixture(scope="module")
def course(run: Path) -> Course:
    with workers_here():
        return asking.course(run)


def test_a_confined_worker_reads_the_same_course(run: Path, course: Course) -> None:
    assert asking.course(run, limits=Limits(2 << 30, 120)) == course
    with pytest.raises(WeighbridgeError):
        asking.course(run / "steps", limits=Limits(2 << 30, 120))


def _named(course: Course, party: Party, step: int = STEP) -> Course:
    """The course of a party that changed a step: its own state stands after it."""
    if party.record is None:
        return course
    states = course.states[: 32 * step] + party.record.state + course.states[32 * (step + 1) :]
    return replace(course, states=states)


def _referee() -> Referee:
    return Referee((KEYS[0].public, KEYS[1].public), REFEREE, judge=judge_here, clock=60.0, now=lambda: 0.0)


def _post(referee: Referee, party: int, content: Content) -> None:
    referee.post(signed(referee.dispute.head, content, KEYS[party]).data)


def _verdicts(referee: Referee) -> dict[int, str]:
    assert referee.ruling is not None
    assert isinstance(referee.ruling.content, Ruling)
    return {party: verdict for party, verdict, _, _ in referee.ruling.content.claims}


def _play(parties: tuple[Party, Party], courses: tuple[Course, Course]) -> Referee:
    referee = _referee()
    for party, course in enumerate(courses):
        _post(referee, party, course)
    assert referee.dispute.step == STEP
    asked = moves.challenge(parties[CHALLENGER].tree()[0], STEP, own=True)
    _post(referee, CHALLENGER, asked)
    _post(referee, DEFENDER, moves.answer(parties[DEFENDER].tree()[0], asked))
    while referee.ruling is None:
        party, due = referee.dispute.due()
        assert due == "opening"
        _post(referee, party, Shown(opening=parties[party].tree(referee.dispute.leaf)[0].opening or b""))
    return referee


@pytest.mark.parametrize("lies", [CHALLENGER, DEFENDER])
def test_the_step_is_found_and_then_the_operation(run: Path, liar: Party, course: Course, lies: int) -> None:
    parties = (liar, Party(run)) if lies == CHALLENGER else (Party(run), liar)
    referee = _play(parties, (_named(course, parties[0]), _named(course, parties[1])))
    assert _verdicts(referee) == {lies: "false", 1 - lies: "admissible"}
    assert referee.dispute.leaf == 22
    for key in KEYS:
        assert sum(message.key == key.public for message in referee.dispute.messages) == 3
    assert verify(pack(referee.log()), judge_here).agrees


@pytest.mark.finding("dispute.record")
@pytest.mark.parametrize("lies", [CHALLENGER, DEFENDER])
def test_a_party_that_leaves_its_course_has_a_false_claim(run: Path, liar: Party, course: Course, lies: int) -> None:
    """It names other states, and then hides behind the honest record of the step."""
    other = _named(course, liar)
    referee = _play((Party(run), Party(run)), (other, course) if lies == CHALLENGER else (course, other))
    assert verify(pack(referee.log()), judge_here).agrees
    assert _verdicts(referee) == {lies: "false", 1 - lies: "admissible"}
    assert reasons(referee)[lies] == "dispute.record"


@dataclass
class _Hiding(Party):
    """Shows the honest tree beside a record that ends in another state."""

    false: StepRecord | None = None

    def tree(self, place: int | None = None) -> tuple[Traced, list[Leaf], StepRecord]:
        assert self.false is not None
        told, leaves, made = super().tree(place)
        return replace(told, record=self.false.to_cbor()), leaves, made


@pytest.mark.finding("dispute.record")
@pytest.mark.parametrize("lies", [CHALLENGER, DEFENDER])
def test_a_party_that_shows_the_honest_tree_is_held_to_its_state(run: Path, course: Course, lies: int) -> None:
    honest = Transcript.open(run).step(STEP)
    hiding = _Hiding(run, false=replace(honest, state=bytes(32)))
    other = _named(course, Party(run, record=hiding.false))
    if lies == CHALLENGER:
        referee = _play((hiding, Party(run)), (other, course))
    else:
        referee = _play((Party(run), hiding), (course, other))
    assert _verdicts(referee) == {lies: "false", 1 - lies: "admissible"}
    assert reasons(referee)[lies] == "dispute.record"
    assert verify(pack(referee.log()), judge_here).agrees


@pytest.mark.finding("dispute.ground")
def test_courses_without_a_step_to_dispute_refute_no_party(liar: Party, course: Course) -> None:
    other = _named(course, liar)
    inputs = other.inputs[: 32 * STEP] + bytes(32)
    for against in (
        course,
        replace(other, terms=b"other"),
        replace(other, inputs=inputs),
        replace(other, inputs=course.inputs[: 32 * STEP] + NO_INPUT),
        Course(terms=course.terms, states=course.states[:-32], inputs=course.inputs[:-32]),
        Course(terms=course.terms, states=b"", inputs=b""),
    ):
        referee = _referee()
        _post(referee, CHALLENGER, course)
        _post(referee, DEFENDER, against)
        assert reasons(referee) == {CHALLENGER: "dispute.ground", DEFENDER: "dispute.ground"}
        assert _verdicts(referee) == {CHALLENGER: "undecided", DEFENDER: "undecided"}
        checked = verify(pack(referee.log()), judge_here)
        assert checked.agrees
        assert checked.parties == (KEYS[0].public, KEYS[1].public)


@pytest.mark.finding("dispute.message")
def test_only_the_step_at_which_the_courses_part_can_be_challenged(run: Path, liar: Party, course: Course) -> None:
    referee = _referee()
    told = Party(run).tree()[0]
    good = moves.challenge(told, STEP, own=True)
    _post(referee, CHALLENGER, course)
    for content in (course, good):
        with pytest.raises(DisputeError):
            _post(referee, CHALLENGER, content)
    _post(referee, DEFENDER, _named(course, liar))
    for content in (
        course, replace(good, step=STEP - 1), replace(good, own=False), replace(good, state=bytes(32)),
        replace(good, terms=b"other"),
    ):  # fmt: skip
        with pytest.raises(DisputeError):
            _post(referee, CHALLENGER, content)
    _post(referee, CHALLENGER, good)
    assert referee.dispute.due() == (DEFENDER, "answer")


@pytest.mark.finding("dispute.forfeit")
def test_a_party_that_names_no_course_or_no_record_forfeits(liar: Party, course: Course) -> None:
    for said, late in ((1, DEFENDER), (2, CHALLENGER)):
        time = [0.0]
        referee = Referee((KEYS[0].public, KEYS[1].public), REFEREE, clock=60.0, now=lambda time=time: time[0])
        for party, content in list(enumerate((course, _named(course, liar))))[:said]:
            _post(referee, party, content)
        time[0] = 61.0
        referee.tick()
        assert _verdicts(referee) == {late: "forfeit"}
        assert verify(pack(referee.log()), judge_here).agrees


def test_the_commands_find_the_step(run: Path, liar: Party, course: Course, tmp_path: Path) -> None:
    key, file = load_or_create_key(tmp_path / "key"), tmp_path / "case"
    mine = ("--key", tmp_path / "key")
    with workers_here():
        assert fails("dispute", "open", run, *mine, "--out", file) == "usage", "a record is of one step"
        assert answer("dispute", "open", run, "--own", *mine, "--out", file)["steps"] == STEP + 1

        def send(content: Content) -> None:
            head = list(unpack(file.read_bytes()))[-1].head
            with file.open("ab") as stream:
                stream.write(signed(head, content, KEYS[1]).data)

        send(_named(course, liar))
        told = answer("dispute", "answer", file, run, *mine)
        assert (told["sent"], told["step"]) == ("challenge", STEP)
        asked = list(unpack(file.read_bytes()))[-1].content
        assert isinstance(asked, game.Challenge)
        send(moves.answer(liar.tree()[0], asked))
        assert answer("dispute", "answer", file, run, *mine)["leaf"] == 22
        send(Shown(opening=liar.tree(22)[0].opening or b""))
        ruled = answer("dispute", "judge", file, *mine, code=1)
        assert {each["party"]: each["verdict"] for each in ruled["claims"]} == {
            "challenger": "admissible", "defender": "false"
        }  # fmt: skip
        checked = answer("dispute", "verify", file, code=1)
        assert (checked["agrees"], checked["challenger"]) == (True, key.public.hex())


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.data())
def test_the_first_state_that_differs_names_the_step(changed: list[bool], data: st.DataObject) -> None:
    """`parting` names the first difference of the states, and `read(signed(course).data).content == course`."""
    drawn = data.draw(st.binary(min_size=32 * len(changed), max_size=32 * len(changed)))
    one = Course(terms=b"t", states=drawn, inputs=b"\x01" * len(drawn))
    states = bytearray(drawn)
    for step, differs in enumerate(changed):
        states[32 * step] ^= differs
    other = replace(one, states=bytes(states))
    expected = changed.index(True) if True in changed else None
    found = parting(one, other), parting(other, one)
    assert [each and each.step for each in found] == [expected, expected]
    assert read(signed(START, other, KEYS[0]).data).content == other


def _challenged(course: Course, liar: Party) -> Referee:
    """A dispute whose challenger may now say anything, against an honest defender."""
    referee = _referee()
    _post(referee, CHALLENGER, _named(course, liar))
    _post(referee, DEFENDER, course)
    return referee


@pytest.mark.finding("dispute.course")
@pytest.mark.parametrize("program", [True, False], ids=["other program", "same program"])
def test_a_challenger_that_talks_about_something_else_than_its_course_loses(
    run: Path, liar: Party, course: Course, program: bool
) -> None:
    """From another program, which an honest defender answers without a record, or with other values or batch."""
    asked, honest = moves.challenge(liar.tree()[0], STEP, own=True), Party(run)
    assert liar.record is not None
    other = asked.tape + b"\x00"
    for escape in (
        [replace(asked, tape=other), replace(asked, tape=other, record=b"none"),
         replace(asked, record=replace(liar.record, tape=bytes_digest(other)).to_cbor(), tape=other)]
        if program else
        [replace(asked, record=replace(liar.record, batch=bytes(32)).to_cbor()),
         replace(asked, record=replace(liar.record, step=STEP - 1).to_cbor()),
         replace(asked, record=replace(liar.record, tape=bytes(32)).to_cbor())]
    ):  # fmt: skip
        referee = _challenged(course, liar)
        _post(referee, CHALLENGER, escape)
        answered = moves.answer(honest.tree()[0], escape)
        assert (answered.record == b"") == program
        _post(referee, DEFENDER, answered)
        while referee.ruling is None:
            party, _ = referee.dispute.due()
            shown = b"" if party == CHALLENGER else honest.tree(referee.dispute.leaf)[0].opening or b""
            _post(referee, party, Shown(opening=shown))
        assert _verdicts(referee) == {CHALLENGER: "false"}
        assert reasons(referee) == {CHALLENGER: "dispute.course"}
        assert verify(pack(referee.log()), judge_here).agrees


@pytest.mark.finding("dispute.forfeit")
def test_a_defender_that_answers_nothing_to_a_challenge_about_its_step_forfeits(
    run: Path, liar: Party, course: Course
) -> None:
    referee = _referee()
    _post(referee, CHALLENGER, course)
    _post(referee, DEFENDER, _named(course, liar))
    _post(referee, CHALLENGER, moves.challenge(Party(run).tree()[0], STEP, own=True))
    _post(referee, DEFENDER, moves.answer(replace(liar.tree()[0], tape=b""), _asked(referee)))
    assert _verdicts(referee) == {DEFENDER: "forfeit"}
    assert verify(pack(referee.log()), judge_here).agrees


def _asked(referee: Referee) -> game.Challenge:
    content = referee.dispute.messages[-1].content
    assert isinstance(content, game.Challenge)
    return content


HOSTILE = {
    "deep": b"\x81" * (1 << 20) + b"\x80",
    "wide": b"\x9a" + (1 << 21).to_bytes(4, "big") + b"\x80" * (1 << 21),
    "promised": b"\x5b" + b"\xff" * 8,
    "wrong types": cbor(["step", {"batch": 1.5}]),
    "empty": b"",
}


@pytest.mark.parametrize("name", [*HOSTILE, "truncated", "wrong fields"])
def test_hostile_bytes_end_the_course_of_the_challenger_and_not_the_referee(
    run: Path, liar: Party, course: Course, name: str
) -> None:
    told = Party(run).tree()[0]
    fields: dict[str, Any] = decode_cbor(told.record)
    record = HOSTILE.get(name, told.record[:-1] if name == "truncated" else cbor(fields | {"rng": [1]}))
    referee = _challenged(course, liar)
    _post(referee, CHALLENGER, replace(moves.challenge(told, STEP, own=True), record=record, tape=record))
    _post(referee, DEFENDER, Answer(record=b"", log=bytes(32), leaves=b""))
    assert reasons(referee) == {CHALLENGER: "dispute.course"}
    assert verify(pack(referee.log()), judge_here).agrees


def test_the_referee_decodes_no_record_in_its_own_process(
    run: Path, liar: Party, course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With confined workers that judge: hostile bytes, and an honest challenger against a defender without a record."""
    said = [moves.challenge(Party(run).tree()[0], STEP, own=True)]
    said.append(replace(said[0], record=HOSTILE["deep"]))

    def decoded(*_: object) -> StepRecord:
        raise AssertionError("a record was decoded in the referee's process")

    monkeypatch.setattr(StepRecord, "from_map", decoded)
    limits = Limits(2 << 30, 120)
    for asked, expected in zip(said, ({DEFENDER: "dispute.forfeit"}, {CHALLENGER: "dispute.course"}), strict=True):
        referee = Referee(
            (KEYS[0].public, KEYS[1].public), REFEREE, clock=60.0, now=lambda: 0.0,
            judge=lambda claim, opening: asking.judge(claim, opening, limits=limits),
        )  # fmt: skip
        for party, content in (
            (CHALLENGER, course), (DEFENDER, _named(course, liar)), (CHALLENGER, asked),
            (DEFENDER, Answer(record=b"", log=bytes(32), leaves=b"")),
        ):  # fmt: skip
            _post(referee, party, content)
        assert reasons(referee) == expected
