"""Courses by ranges: one range is shown by each party, and the dispute goes on as with courses that name all states."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import disputed
from support.disputed import STEP, Party, cheat, judge_here
from support.recording_store import RecordingStore
from support.workers_here import workers_here

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.errors import FormatError
from weighbridge.execution.dispute import asking, moves, ranges
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.leaves import NO_INPUT
from weighbridge.execution.dispute.messages import (
    START,
    Content,
    Course,
    DisputeError,
    Range,
    Ruling,
    Shown,
    body_of,
    content_of,
    pack,
    read,
    signed,
)
from weighbridge.execution.dispute.ranges import by_ranges, fits, parting, range_of, spoken
from weighbridge.execution.dispute.refereeing import Referee, verify

KEYS = (SigningKey.generate(), SigningKey.generate())
REFEREE = SigningKey.generate()
MODULES = ("messages", "ranges", "game")


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


@pytest.fixture(params=[1, 2, 3, STEP + 1])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Ranges of few steps, so that a short training has several."""
    for name in MODULES:
        monkeypatch.setattr(sys.modules[f"weighbridge.execution.dispute.{name}"], "RANGE", request.param)
    monkeypatch.setattr(ranges, "BY_RANGES", 1)
    return int(request.param)


def _false(course: Course, liar: Party) -> Course:
    assert liar.record is not None
    return replace(course, states=course.states[: 32 * STEP] + liar.record.state + course.states[32 * (STEP + 1) :])


def _referee(now: list[float] | None = None) -> Referee:
    clock = now or [0.0]
    return Referee((KEYS[0].public, KEYS[1].public), REFEREE, judge=judge_here, clock=60.0, now=lambda: clock[0])


def _post(referee: Referee, party: int, content: Content) -> None:
    referee.post(signed(referee.dispute.head, content, KEYS[party]).data)


def _verdicts(referee: Referee) -> dict[int, str]:
    assert referee.ruling is not None
    assert isinstance(referee.ruling.content, Ruling)
    return {party: verdict for party, verdict, _, _ in referee.ruling.content.claims}


def test_a_long_course_is_taken_by_ranges_alone(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hostile party's course, a referee would hold 64 bytes a step; by ranges it is a thousandth."""
    monkeypatch.setattr(ranges, "MOST_NAMED", len(course.states) // 32 - 1)
    referee = _referee()
    with pytest.raises(DisputeError, match="by ranges"):
        _post(referee, CHALLENGER, course)
    _post(referee, CHALLENGER, by_ranges(course))
    with pytest.raises(DisputeError, match="by ranges"):
        _post(referee, DEFENDER, course)
    _post(referee, DEFENDER, by_ranges(course))


@pytest.mark.parametrize("whole", [None, CHALLENGER, DEFENDER])
@pytest.mark.parametrize("lies", [CHALLENGER, DEFENDER])
def test_the_range_names_the_step_and_the_step_the_operation(
    run: Path, liar: Party, course: Course, small: int, lies: int, whole: int | None
) -> None:
    """Also where one party, of another version or with a shorter training, names all its states."""
    parties = [liar if party == lies else Party(run) for party in (CHALLENGER, DEFENDER)]
    courses = [_false(course, liar) if party == lies else course for party in (CHALLENGER, DEFENDER)]
    referee = _referee()
    for party, each in enumerate(courses):
        _post(referee, party, each if party == whole else spoken(each))
    assert referee.dispute.disputed_range == STEP // small
    for party, each in enumerate(courses):
        assert referee.dispute.due() == (party, "range")
        _post(referee, party, range_of(each, STEP // small))
    assert referee.dispute.step == STEP
    asked = moves.challenge(parties[CHALLENGER].tree()[0], STEP, own=True)
    with pytest.raises(DisputeError):
        _post(referee, CHALLENGER, replace(asked, state=bytes(32)))
    _post(referee, CHALLENGER, asked)
    _post(referee, DEFENDER, moves.answer(parties[DEFENDER].tree()[0], asked))
    while referee.ruling is None:
        party, _ = referee.dispute.due()
        _post(referee, party, Shown(opening=parties[party].tree(referee.dispute.leaf)[0].opening or b""))
    assert _verdicts(referee) == {lies: "false", 1 - lies: "admissible"}
    assert verify(pack(referee.log()), judge_here).agrees


@pytest.mark.finding("dispute.message")
def test_a_range_that_is_not_of_its_course_is_not_taken_and_its_party_forfeits(
    liar: Party, course: Course, small: int
) -> None:
    """Who copied the other party's course, or made one up, has no range to show."""
    now = [0.0]
    referee, at = _referee(now), STEP // small
    _post(referee, CHALLENGER, spoken(course))
    _post(referee, DEFENDER, spoken(_false(course, liar)))
    good = range_of(course, at)
    bad = [
        range_of(_false(course, liar), at),
        replace(good, states=good.states + bytes(32), inputs=good.inputs + bytes(32)),
        replace(good, inputs=bytes(len(good.inputs))), replace(good, before=b""), replace(good, before=bytes(64)),
    ]  # fmt: skip
    for each in (each for each in bad if each != good):
        with pytest.raises(DisputeError):
            _post(referee, CHALLENGER, each)
    now[0] = 61.0
    referee.tick()
    assert _verdicts(referee) == {CHALLENGER: "forfeit"}
    assert verify(pack(referee.log()), judge_here).agrees


@pytest.mark.finding("dispute.ground")
def test_courses_without_a_step_to_dispute_refute_no_party(liar: Party, course: Course, small: int) -> None:
    other = _false(course, liar)
    for against in (
        course,
        replace(other, terms=b"other"),
        replace(other, inputs=course.inputs[: 32 * STEP] + NO_INPUT),
        Course(terms=course.terms, states=course.states[:-32], inputs=course.inputs[:-32]),
    ):
        referee = _referee()
        for party, each in enumerate((course, against)):
            _post(referee, party, spoken(each))
        for party, each in enumerate((course, against)):
            if referee.dispute.disputed_range is not None:
                _post(referee, party, range_of(each, referee.dispute.disputed_range))
        assert _verdicts(referee) == {CHALLENGER: "undecided", DEFENDER: "undecided"}
        assert verify(pack(referee.log()), judge_here).agrees


@given(
    st.integers(1, 5000), st.integers(0, 4999), st.integers(0, 4999), st.sampled_from([1, 7, 1024])
)  # fmt: skip
def test_ranges_say_the_same_as_all_states(steps: int, one: int, other: int, size: int) -> None:
    """`range_of` of the first range that differs has the parting of the whole, and fits its own course alone."""
    states = b"".join(number.to_bytes(32, "big") for number in range(1, steps + 1))
    changed = bytearray(states)
    for at in (one % steps, other % steps):
        changed[32 * at] ^= 1
    first, second = (Course(terms=b"t", states=each, inputs=states) for each in (states, bytes(changed)))
    with pytest.MonkeyPatch.context() as patch:
        for name in MODULES:
            patch.setattr(sys.modules[f"weighbridge.execution.dispute.{name}"], "RANGE", size)
        short = [by_ranges(first), by_ranges(second)]
        at = ranges.apart(short[0], short[1])
        whole = parting(first, second)
        assert (at is None) == (whole is None)
        for each in short:
            assert read(signed(START, each, KEYS[0]).data).content == each
        if at is None:
            return
        shown = [range_of(first, at), range_of(second, at)]
        assert parting(shown[0], shown[1], at * size) == whole
        assert [fits(mine, at, own) for mine in short for own in shown] == [True, False, False, True]
        assert content_of(body_of(shown[0])) == shown[0]


def test_a_short_course_names_all_its_states(course: Course) -> None:
    assert spoken(course) == course


@pytest.mark.parametrize("count", [1, 1025, 2049, -1, 1 << 62])
def test_a_course_by_ranges_has_as_many_as_its_steps_have(count: int) -> None:
    good = Course(terms=b"t", states=bytes(64), inputs=bytes(64), count=2048)
    assert content_of(body_of(good)) == good
    if count != 1025:
        with pytest.raises(FormatError):
            content_of(body_of(replace(good, count=count)))
    with pytest.raises(FormatError):
        content_of(body_of(Range(before=b"", states=bytes(64), inputs=bytes(32))))
