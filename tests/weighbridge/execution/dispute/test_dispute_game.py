"""Disputes from challenge to ruling: the referee finds the operation that was changed, and no honest claim is false."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.disputed import STEP, Party, cheat, judge_here, reasons, record
from support.recording_store import RecordingStore

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import WeighbridgeError
from weighbridge.core.memory_map import Held
from weighbridge.execution.dispute import asking, moves
from weighbridge.execution.dispute.asking import Traced
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.messages import (
    START,
    Answer,
    Challenge,
    DisputeError,
    Message,
    Ruling,
    Shown,
    pack,
    read,
    signed,
    unpack,
)
from weighbridge.execution.dispute.openings import Opening
from weighbridge.execution.dispute.refereeing import Referee, verify
from weighbridge.execution.worker_process import Limits
from weighbridge.transcript.reader import Transcript

KEYS = (SigningKey.generate(), SigningKey.generate())
REFEREE = SigningKey.generate()
OP = 21


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Path:
    return recordings.get("disputed", record)


@pytest.fixture(scope="module")
def liar(run: Path) -> Party:
    return cheat(run, OP)


class Clock:
    """The time of a test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _referee(clock: Clock | None = None) -> Referee:
    return Referee((KEYS[0].public, KEYS[1].public), REFEREE, judge=judge_here, clock=60.0, now=clock or Clock())


Change = Callable[[int, Opening], bytes]


def _play(
    challenger: Party | Traced, defender: Party, *, own: bool, change: Change | None = None
) -> tuple[Referee, dict[int, str]]:
    """Plays a dispute; returns the referee and the verdict of each claim. `change` forges what a party shows."""
    referee = _referee()
    mine = challenger if isinstance(challenger, Traced) else challenger.tree()[0]
    asked = moves.challenge(mine, STEP, own=own)
    referee.post(signed(referee.dispute.head, asked, KEYS[0]).data)
    referee.post(signed(referee.dispute.head, moves.answer(defender.tree()[0], asked), KEYS[1]).data)
    while referee.ruling is None:
        party, due = referee.dispute.due()
        assert due == "opening"
        source = defender if party == DEFENDER or isinstance(challenger, Traced) else challenger
        opening = source.tree(referee.dispute.leaf)[0].opening
        assert opening is not None
        if change is not None:
            opening = change(party, Opening.from_cbor(opening))
        referee.post(signed(referee.dispute.head, Shown(opening=opening), KEYS[party]).data)
    ruling = referee.ruling.content
    assert isinstance(ruling, Ruling)
    assert len(referee.dispute.messages) <= 4
    return referee, {party: verdict for party, verdict, _, _ in ruling.claims}


@pytest.mark.finding("dispute.leaf")
@pytest.mark.finding("dispute.follows")
@pytest.mark.parametrize("lies", [CHALLENGER, DEFENDER])
def test_of_two_trainings_the_one_that_changed_an_operation_is_found(run: Path, liar: Party, lies: int) -> None:
    parties = (liar, Party(run)) if lies == CHALLENGER else (Party(run), liar)
    referee, verdicts = _play(*parties, own=True)
    assert verdicts == {lies: "false", 1 - lies: "admissible"}
    assert reasons(referee) == {lies: "dispute.leaf", 1 - lies: "dispute.follows"}
    assert referee.dispute.leaf == OP + 1
    checked = verify(pack(referee.log()), judge_here)
    assert checked.agrees
    assert (checked.parties, checked.referee) == ((KEYS[0].public, KEYS[1].public), REFEREE.public)


def test_an_auditor_that_executes_a_false_record_finds_the_operation(run: Path, liar: Party) -> None:
    auditor = Party(run, record=liar.record)
    assert len(auditor.tree()[0].leaves) > OP + 1, "the record's own checksums part later"
    referee, verdicts = _play(auditor, liar, own=False)
    assert verdicts == {CHALLENGER: "admissible", DEFENDER: "false"}
    assert referee.dispute.leaf == OP + 1


def test_an_auditor_who_denies_an_honest_operation_achieves_nothing(run: Path) -> None:
    told = Party(run).tree()[0]
    for last in (0, 12, len(told.leaves) - 1):
        _, verdicts = _play(replace(told, leaves=told.leaves[:last]), Party(run), own=False)
        assert verdicts == {DEFENDER: "admissible"}


def test_both_claims_may_be_false(run: Path, liar: Party) -> None:
    told = Party(run).tree()[0]
    other = replace(told, leaves=(*told.leaves[: OP + 1], bytes(32), *told.leaves[OP + 2 :]))
    assert _play(other, liar, own=True)[1] == {CHALLENGER: "false", DEFENDER: "false"}


@pytest.mark.finding("dispute.equal")
def test_equal_trees_are_no_dispute(run: Path) -> None:
    referee, verdicts = _play(Party(run), Party(run), own=True)
    assert verdicts == {DEFENDER: "admissible"}
    assert reasons(referee) == {DEFENDER: "dispute.equal"}


@pytest.mark.finding("dispute.leaf.missing")
def test_a_defender_whose_own_tree_ends_early_has_a_false_claim(run: Path) -> None:
    said = Transcript.open(run).step(STEP)
    liar = Party(run, record=replace(said, host=[0.5]))
    referee, verdicts = _play(liar, liar, own=False)
    assert verdicts == {DEFENDER: "false"}
    assert reasons(referee) == {DEFENDER: "dispute.leaf.missing"}


@pytest.mark.finding("dispute.record")
def test_a_record_of_other_results_than_those_of_the_leaf_is_false(run: Path) -> None:
    """The liar posts the leaf that is true, and has a record that says something else."""
    honest = Party(run).tree()[0]
    said = Transcript.open(run).step(STEP)
    sums = bytearray(said.checksums)
    sums[3] ^= 1
    lie = replace(said, checksums=bytes(sums))
    auditor = Party(run, record=lie).tree()[0]

    class Double(Party):
        def tree(self, place: int | None = None) -> tuple:  # type: ignore[type-arg]
            told, leaves, made = super().tree(place)
            return replace(told, record=lie.to_cbor()), leaves, made

    assert 0 < len(auditor.leaves) < len(honest.leaves)
    referee, verdicts = _play(auditor, Double(run), own=False)
    assert verdicts == {DEFENDER: "false"}
    assert reasons(referee) == {DEFENDER: "dispute.record"}


@pytest.mark.finding("dispute.rounding")
def test_a_log_that_the_record_does_not_name_is_false(run: Path) -> None:
    told = Party(run).tree()[0]
    other = replace(told, log=bytes(32), leaves=(*told.leaves[:5], bytes(32), *told.leaves[6:]))
    referee, verdicts = _play(other, Party(run), own=True)
    assert verdicts == {CHALLENGER: "false", DEFENDER: "admissible"}
    assert reasons(referee)[CHALLENGER] == "dispute.rounding"


# --- openings of something else -------------------------------------------------------------------------------------


def _garbage(opening: Opening) -> bytes:
    return b"\xff" * 40


def _a_long_key_twice(opening: Opening) -> bytes:
    """What a decoder says of it quotes the key; with one of 60 MB no answer of a worker held it."""
    key = cbor("\x01" * (1 << 16))
    return b"\xa2" + (key + b"\x01") * 2


def _other_bytes(opening: Opening) -> bytes:
    """Other bytes of an operand, with their own digest."""
    at = next(i for i, part in enumerate(opening.slots) if part[1])
    slot, data, _, proof = opening.slots[at]
    assert data is not None
    data = bytes([data[0] ^ 1]) + data[1:]
    parts = [*opening.slots]
    parts[at] = (slot, data, Held(len(data), bytes_digest(data)), proof)
    return replace(opening, slots=parts).to_cbor()


def _other_bytes_with_the_old_digest(opening: Opening) -> bytes:
    at = next(i for i, part in enumerate(opening.slots) if part[1])
    slot, data, held, proof = opening.slots[at]
    assert data is not None
    parts = [*opening.slots]
    parts[at] = (slot, bytes(len(data)), held, proof)
    return replace(opening, slots=parts).to_cbor()


def _no_slots(opening: Opening) -> bytes:
    return replace(opening, slots=[]).to_cbor()


def _another_log(opening: Opening) -> bytes:
    return replace(opening, log=opening.log + b"\x00").to_cbor()


def _another_leaf_before(opening: Opening) -> bytes:
    return replace(opening, previous=opening.previous[:-1] + b"\x00").to_cbor()


@pytest.mark.finding("dispute.opening")
@pytest.mark.parametrize(
    "forged",
    [
        _garbage,
        _a_long_key_twice,
        _other_bytes,
        _other_bytes_with_the_old_digest,
        _no_slots,
        _another_log,
        _another_leaf_before,
    ],
)
def test_who_opens_something_else_has_shown_nothing(run: Path, liar: Party, forged: Callable[[Opening], bytes]) -> None:
    def change(party: int, opening: Opening) -> bytes:
        return forged(opening) if party == DEFENDER else opening.to_cbor()

    referee, verdicts = _play(Party(run), liar, own=True, change=change)
    assert verdicts == {CHALLENGER: "admissible", DEFENDER: "forfeit"}
    assert verify(pack(referee.log()), judge_here).agrees


# --- order, clocks, signatures --------------------------------------------------------------------------------------


def _challenge(own: bool = True) -> Challenge:
    return Challenge(
        terms=b"", tape=b"", state=bytes(32), step=1, record=b"r", own=own, log=bytes(32), leaves=bytes(64)
    )


def _answer() -> Answer:
    return Answer(record=b"r", log=bytes(32), leaves=bytes(32) + b"\x01" * 32)


@pytest.mark.finding("dispute.forfeit")
def test_a_party_that_stalls_forfeits_at_each_message() -> None:
    said = [(0, _challenge()), (1, _answer()), (0, Shown(opening=b"o")), (1, Shown(opening=b"o"))]
    for count, (late, _) in enumerate(said):
        clock = Clock()
        referee = _referee(clock)
        for party, content in said[:count]:
            clock.now += 10
            referee.post(signed(referee.dispute.head, content, KEYS[party]).data)
        clock.now += 59
        referee.tick()
        assert (referee.ruling is not None) == (count >= 2), "what it used before counts"
        clock.now += 2
        referee.tick()
        assert referee.ruling is not None
        assert isinstance(referee.ruling.content, Ruling)
        assert [claim[:2] for claim in referee.ruling.content.claims] == [(late, "forfeit")]
        assert reasons(referee) == {late: "dispute.forfeit"}
        assert verify(pack(referee.log()), judge_here).agrees
        with pytest.raises(DisputeError):
            referee.post(signed(referee.dispute.head, said[count][1], KEYS[late]).data)


@pytest.mark.finding("dispute.message")
def test_what_is_not_due_is_refused_and_the_clock_runs_on() -> None:
    clock = Clock()
    referee = _referee(clock)
    good = signed(START, _challenge(), KEYS[0])
    for data in (
        b"",
        b"\x00" * 100,
        signed(START, _answer(), KEYS[0]).data,
        signed(START, _challenge(), KEYS[1]).data,
        signed(bytes([1]) * 32, _challenge(), KEYS[0]).data,
        good.data[:-1] + bytes([good.data[-1] ^ 1]),
    ):
        clock.now += 5
        with pytest.raises(WeighbridgeError):
            referee.post(data)
    assert not referee.dispute.messages
    referee.post(good.data)
    with pytest.raises(DisputeError):
        referee.post(good.data)
    clock.now += 31
    referee.tick()
    assert referee.ruling is None, "the challenger has 30 s left, and it is the defender's turn"


@pytest.mark.finding("dispute.ground")
def test_an_answer_about_another_step_decides_nothing(run: Path) -> None:
    told = Party(run).tree()[0]
    referee, verdicts = _play(replace(told, state=bytes(32)), Party(run), own=True)
    assert verdicts == {CHALLENGER: "undecided", DEFENDER: "undecided"}
    assert set(reasons(referee).values()) == {"dispute.ground"}


def test_a_ruling_that_says_something_else_is_noticed(run: Path, liar: Party) -> None:
    referee, _ = _play(Party(run), liar, own=True)
    assert referee.ruling is not None
    ruling = referee.ruling.content
    assert isinstance(ruling, Ruling)
    turned = [(1 - party, *rest) for party, *rest in ruling.claims]
    false = signed(referee.dispute.head, replace(ruling, claims=turned), REFEREE)  # type: ignore[arg-type]
    assert not verify(pack([*referee.dispute.messages, false]), judge_here).agrees
    with pytest.raises(DisputeError, match="no ruling"):
        verify(pack(referee.dispute.messages), judge_here)
    with pytest.raises(DisputeError, match="follow"):
        verify(pack([referee.dispute.messages[0], referee.ruling]), judge_here)


def test_a_referee_judges_in_a_confined_worker(run: Path, liar: Party) -> None:
    referee, _ = _play(Party(run), liar, own=True)
    found = verify(
        pack(referee.log()), lambda claim, opening: asking.judge(claim, opening, limits=Limits(2 << 30, 120))
    )
    assert found.agrees
    assert [(party, each.verdict) for party, each in found.again] == [(0, "admissible"), (1, "false")]


@given(
    st.sampled_from([_challenge(), _answer(), Shown(opening=b"x")])
    | st.builds(
        Ruling,
        leaf=st.integers(-1, 1 << 40),
        claims=st.lists(st.tuples(st.integers(0, 1), st.text(), st.text(), st.text()), max_size=2),
        seconds=st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)),
        clock=st.floats(0, 1e9),
        sent=st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
        judged=st.floats(0, 1e9),
    ),
    st.binary(min_size=32, max_size=32),
)
def test_a_message_comes_back(content: Challenge | Answer | Shown | Ruling, previous: bytes) -> None:
    message = signed(previous, content, KEYS[0])
    assert read(message.data) == message


@given(st.binary(max_size=200), st.integers(0, 1 << 12), st.binary(min_size=1, max_size=1))
def test_garbage_is_no_message(garbage: bytes, at: int, byte: bytes) -> None:
    good = signed(START, _answer(), KEYS[0]).data
    at %= len(good)
    for hostile in (garbage, good[:at], good[:at] + byte + good[at + 1 :], cbor([garbage] * 4)):
        found: list[Message] = []
        try:
            found += [read(hostile), *unpack(hostile)]
        except WeighbridgeError:
            continue
        assert all(message.data == hostile == good for message in found)
