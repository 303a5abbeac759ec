"""A referee's docket: who may open what, stalls, replays, restarts, and what a lost dispute costs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.errors import FormatError, NotFoundError, WeighbridgeError
from weighbridge.execution.dispute.asking import Claim, Judgement
from weighbridge.execution.dispute.docket import DisputeLimitError, Docket, DocketLimits, PartyError
from weighbridge.execution.dispute.messages import (
    START,
    Answer,
    Challenge,
    Course,
    DisputeError,
    Message,
    Ruling,
    Shown,
    read,
    signed,
)
from weighbridge.execution.dispute.notices import Notice

MINE, OTHER, THEIRS, STRANGER, REFEREE = (SigningKey.generate() for _ in range(5))
PARTIES = {MINE.public: "lab", OTHER.public: "lab", THEIRS.public: "company"}
LIMITS = DocketLimits(clock=60.0, open=2, lost=2, size=4096, challenge=2048)


@dataclass
class Clock:
    """The time of a test."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def _challenge(step: int = 1) -> Challenge:
    return Challenge(
        terms=b"t", tape=b"p", state=bytes(32), step=step, record=b"r", own=True, log=bytes(32), leaves=bytes(64)
    )


def challenge(step: int = 1, *, key: SigningKey = MINE) -> Message:
    return signed(START, _challenge(step), key)


def notice(of: Message, key: SigningKey = MINE, *, referee: SigningKey = REFEREE, defender: bytes = b"") -> bytes:
    to = defender or THEIRS.public
    return Notice(referee=referee.public, defender=to, challenge=of.head).signed(key)


def says(verdict: str) -> Callable[[Claim, bytes], Judgement]:
    """A judge to whom the defender's claims are what the test needs them to be, and the challenger's are admissible."""
    return lambda claim, opening: Judgement(
        "admissible" if claim.leaf == bytes(32) else verdict,
        "dispute.leaf",
        "as the test says",  # type: ignore[arg-type]
    )


def docket(path: Path, clock: Clock | None = None, *, verdict: str = "false", key: SigningKey = REFEREE) -> Docket:
    return Docket(path / "docket", key, PARTIES, limits=LIMITS, judge=says(verdict), now=clock or Clock())


def to_the_end(held: Docket, step: int = 1, *, key: SigningKey = MINE) -> str:
    """Plays a dispute about the second leaf to its ruling."""
    asked = challenge(step, key=key)
    dispute, merged = held.open(notice(asked, key), asked.data)
    assert not merged
    for party, content in rest():
        head = held.messages(dispute)[-1].head
        held.post(dispute, signed(head, content, (key, THEIRS)[party]).data)
    held.judge()
    return dispute


def rest() -> list[tuple[int, Answer | Shown]]:
    answer = Answer(record=b"r", log=bytes(32), leaves=bytes(32) + b"\x01" * 32)
    return [(1, answer), (0, Shown(opening=b"o")), (1, Shown(opening=b"o"))]


def ruling(held: Docket, dispute: str) -> Ruling:
    content = held.messages(dispute)[-1].content
    assert isinstance(content, Ruling)
    return content


def test_a_dispute_is_ruled_and_the_loser_is_charged(tmp_path: Path) -> None:
    held = docket(tmp_path)
    dispute = to_the_end(held)
    assert [claim[:2] for claim in ruling(held, dispute).claims] == [(0, "admissible"), (1, "false")]
    (charge,) = held.charges()
    assert (charge.dispute, charge.key, charge.organisation) == (dispute, THEIRS.public, "company")
    assert charge.bytes == sum(len(each.data) for each in held.messages(dispute)[:-1])
    assert docket(tmp_path).charges() == [charge], "and still is after a restart"


def test_no_party_is_charged_for_what_is_undecided(tmp_path: Path) -> None:
    held = Docket(
        tmp_path, REFEREE, PARTIES, judge=lambda claim, opening: Judgement("undecided", "dispute.bound", "near")
    )
    to_the_end(held)
    assert held.charges() == []


def test_a_challenger_who_refutes_nothing_is_charged(tmp_path: Path) -> None:
    held = docket(tmp_path, verdict="admissible")
    to_the_end(held)
    assert [charge.key for charge in held.charges()] == [MINE.public]


@pytest.mark.parametrize("count", range(4))
def test_a_stall_at_each_message_forfeits_also_over_a_restart(tmp_path: Path, count: int) -> None:
    clock = Clock()
    held = docket(tmp_path, clock)
    asked = challenge()
    dispute, _ = held.open(notice(asked), asked.data)
    for party, content in rest()[:count]:
        clock.now += 20
        held.post(dispute, signed(held.messages(dispute)[-1].head, content, (MINE, THEIRS)[party]).data)
    if count == 3:
        clock.now += 1e6
        held.tick()
        assert not held.standing(dispute).ruled, "no clock runs while the referee works"
        held.judge()
        assert [claim[1] for claim in ruling(held, dispute).claims] == ["admissible", "false"]
        return
    late, before = held.standing(dispute).party, held.standing(dispute).used
    assert before == ((0.0, 0.0), (0.0, 20.0), (20.0, 20.0))[count]
    clock.now += 30
    held.tick()
    again = docket(tmp_path, clock)  # killed and started: the clock goes on from where it was
    clock.now += 29 - before[late]
    again.tick()
    assert not again.standing(dispute).ruled
    clock.now += 2
    again.tick()
    assert [claim[:3] for claim in ruling(again, dispute).claims] == [(late, "forfeit", "dispute.forfeit")]
    assert [charge.key for charge in again.charges()] == [(MINE, THEIRS)[late].public]
    assert docket(tmp_path).standing(dispute).ruled


def test_a_referee_that_was_killed_before_it_ruled_rules_after_its_restart(tmp_path: Path) -> None:
    held = docket(tmp_path)
    asked = challenge()
    dispute, _ = held.open(notice(asked), asked.data)
    for party, content in rest():
        held.post(dispute, signed(held.messages(dispute)[-1].head, content, (MINE, THEIRS)[party]).data)
    (tmp_path / "docket" / dispute / "ruling.partial").write_bytes(b"cut o")
    (tmp_path / "docket" / ("0" * 64)).mkdir()  # killed before its challenge was on disk
    again = docket(tmp_path)
    assert not again.standing(dispute).ruled
    again.judge()
    assert ruling(again, dispute).claims[1][1] == "false"
    with pytest.raises(NotFoundError):
        again.standing("0" * 64)


def test_a_docket_of_another_referee_is_not_continued(tmp_path: Path) -> None:
    to_the_end(docket(tmp_path))
    with pytest.raises(FormatError):
        docket(tmp_path, key=STRANGER)


@pytest.mark.finding("dispute.party")
def test_a_key_that_is_not_a_partys_opens_and_answers_nothing(tmp_path: Path) -> None:
    held = docket(tmp_path)
    asked = challenge(key=STRANGER)
    with pytest.raises(PartyError) as caught:
        held.open(notice(asked, STRANGER), asked.data)
    assert caught.value.reason == "dispute.party"
    asked = challenge()
    with pytest.raises(PartyError):
        held.open(notice(asked, defender=STRANGER.public), asked.data)
    dispute, _ = held.open(notice(asked), asked.data)
    for key in (STRANGER, OTHER, MINE):  # no other party may answer either
        with pytest.raises(DisputeError):
            held.post(dispute, signed(asked.head, rest()[0][1], key).data)
    assert len(held.messages(dispute)) == 1


def test_a_challenge_is_for_one_referee_and_one_defender(tmp_path: Path) -> None:
    held, asked = docket(tmp_path), challenge()
    for said in (
        notice(asked, referee=STRANGER), notice(challenge(2)), notice(asked, OTHER),
        notice(asked, defender=MINE.public),
    ):  # fmt: skip
        with pytest.raises(DisputeError):
            held.open(said, asked.data)
    answer = signed(START, rest()[0][1], MINE)
    with pytest.raises(DisputeError):
        held.open(notice(answer), answer.data)
    for garbage in (b"", b"\x00" * 40, asked.data[:-1], b"\xff" * 2000):
        with pytest.raises(WeighbridgeError):
            held.open(notice(asked), garbage)
        with pytest.raises(WeighbridgeError):
            held.open(garbage, asked.data)
    assert list((tmp_path / "docket").iterdir()) == []


def test_replayed_messages_change_nothing(tmp_path: Path) -> None:
    held = docket(tmp_path)
    first = to_the_end(held)
    before = held.messages(first)
    assert held.open(notice(before[0]), before[0].data) == (first, True)
    asked = challenge(2)
    second, _ = held.open(notice(asked), asked.data)
    for old in before:
        for dispute in (first, second):
            with pytest.raises(DisputeError):
                held.post(dispute, old.data)
    assert [each.data for each in held.messages(first)] == [each.data for each in before]
    assert len(held.messages(second)) == 1


def test_identical_claims_merge_unless_the_first_challenger_gave_up(tmp_path: Path) -> None:
    clock = Clock()
    held = docket(tmp_path, clock)
    asked, same = challenge(), challenge(key=OTHER)
    dispute, _ = held.open(notice(asked), asked.data)
    assert held.open(notice(same, OTHER), same.data) == (dispute, True)
    held.post(dispute, signed(asked.head, rest()[0][1], THEIRS).data)
    clock.now += 61
    held.tick()
    assert ruling(held, dispute).claims[0][1] == "forfeit"
    assert held.open(notice(same, OTHER), same.data) == (same.head.hex(), False), "an accomplice keeps no claim"


@pytest.mark.parametrize(
    ("verdict", "merged"), [("false", False), ("undecided", False), ("forfeit", False), ("admissible", True)]
)
def test_an_accomplice_that_takes_a_course_and_then_lies_keeps_no_other_from_it(
    tmp_path: Path, verdict: str, merged: bool
) -> None:
    """Its course is the honest challenger's; its challenge is any. One that comes through has refuted the defender."""

    def judge(claim: Claim, opening: bytes) -> Judgement:
        said = verdict if claim.record == b"r" else "false"
        return Judgement(said, "dispute.course", "as the test says")  # type: ignore[arg-type]

    clock = Clock()
    held = Docket(tmp_path / "docket", REFEREE, PARTIES, limits=LIMITS, judge=judge, now=clock)
    course = Course(terms=b"t", states=bytes(64), inputs=b"\x01" * 64)
    asked, same = signed(START, course, OTHER), signed(START, course, MINE)
    dispute, _ = held.open(notice(asked, OTHER), asked.data)
    assert held.open(notice(same), same.data) == (dispute, True), "as long as it may still come through"
    for key, content in (
        (THEIRS, replace(course, states=bytes(32) + b"\x01" * 32)), (OTHER, _challenge()),
        (THEIRS, Answer(record=b"s", log=bytes(32), leaves=bytes(32) + b"\x01" * 32)),
        (OTHER, Shown(opening=b"o")), (THEIRS, Shown(opening=b"o")),
    ):  # fmt: skip
        if verdict == "forfeit" and isinstance(content, Challenge):
            clock.now += 61
            held.tick()
            break
        held.post(dispute, signed(held.messages(dispute)[-1].head, content, key).data)
    held.judge()
    assert ruling(held, dispute).claims[0][1] == verdict
    again = docket(tmp_path)  # also after a restart
    assert again.open(notice(same), same.data) == ((dispute, True) if merged else (same.head.hex(), False))


def test_messages_of_disputes_that_are_over_fill_no_memory(tmp_path: Path) -> None:
    """Two parties who collude say much in disputes that are undecided, for which no key is charged."""
    limits = replace(LIMITS, size=1 << 20, challenge=1 << 20)
    held = Docket(tmp_path, REFEREE, PARTIES, limits=limits)
    tracemalloc.start()
    try:
        for number in range(12):
            course = Course(terms=b"t", states=bytes([number]) * (1 << 18), inputs=bytes(1 << 18))
            asked = signed(START, course, MINE)
            dispute, _ = held.open(notice(asked), asked.data)
            held.post(dispute, signed(asked.head, course, THEIRS).data)
            held.judge()
            assert ruling(held, dispute).claims[0][1] == "undecided"
        del asked, course
        assert tracemalloc.get_traced_memory()[0] < 4 << 20, "and 12 MiB were said"
    finally:
        tracemalloc.stop()
    for again in (held, Docket(tmp_path, REFEREE, PARTIES, limits=limits)):
        assert (again.standing(dispute).messages, len(again.messages(dispute))) == (3, 3)


@pytest.mark.finding("dispute.limit")
def test_an_organisation_has_so_many_open_and_a_key_loses_so_many(tmp_path: Path) -> None:
    clock = Clock()
    held = docket(tmp_path, clock, verdict="admissible")
    opened = [challenge(1), challenge(2, key=OTHER)]
    for asked, key in zip(opened, (MINE, OTHER), strict=True):
        held.open(notice(asked, key), asked.data)
    more = challenge(3)
    with pytest.raises(DisputeLimitError, match="open here") as caught:
        held.open(notice(more), more.data)
    assert caught.value.reason == "dispute.limit"
    clock.now += 61
    held.tick()  # the defender forfeits both
    for step in (3, 4):
        to_the_end(held, step)  # the challenger refutes nothing
    more = challenge(5)
    for again in (held, docket(tmp_path, clock)):
        with pytest.raises(DisputeLimitError, match="lost"):
            again.open(notice(more), more.data)
    to_the_end(held, 6, key=OTHER)


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    held = docket(tmp_path)
    large = challenge()
    content = large.content
    assert isinstance(content, Challenge)
    large = signed(START, replace(content, leaves=bytes(2048)), MINE)
    with pytest.raises(DisputeLimitError):
        held.open(notice(large), large.data)
    asked = challenge()
    dispute, _ = held.open(notice(asked), asked.data)
    with pytest.raises(DisputeLimitError):
        held.post(dispute, signed(asked.head, Answer(record=b"", log=bytes(32), leaves=bytes(4096)), THEIRS).data)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_notices_come_back(referee: bytes, defender: bytes, head: bytes) -> None:
    """Notice.read(n.signed(key), key.public) == n; with any byte changed, it is refused."""
    said = Notice(referee=referee, defender=defender, challenge=head)
    data = said.signed(MINE)
    assert Notice.read(data, MINE.public) == said
    for at in range(0, len(data), 17):
        with pytest.raises(WeighbridgeError):
            Notice.read(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], MINE.public)


def test_messages_of_the_docket_are_those_on_disk(tmp_path: Path) -> None:
    held = docket(tmp_path)
    dispute = to_the_end(held)
    files = tmp_path / "docket" / dispute
    said = [read((files / f"{number}.message").read_bytes()) for number in range(4)]
    assert [each.head for each in held.messages(dispute)] == [
        *(e.head for e in said),
        read((files / "ruling").read_bytes()).head,
    ]
