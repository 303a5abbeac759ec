"""The game: leaf hashes of both parties, the first that differs, its openings, and what is said of each claim.

Two parties who part at a step that neither knows yet begin with their courses: the digests of all their states. The
first that differs names the step, and the step records that follow have to fit the courses. Of the step itself a party
sends two messages at most: its leaf hashes, the challenger first, and one opening. The referee judges claims and not
parties: both may be false. Each party has one clock for the whole dispute, which runs while the other waits for it and
stands still while the referee works.

Here messages are compared as bytes. What a record or a program in them says, the confined worker reads that judges.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.errors import FormatError
from weighbridge.execution.dispute.asking import SLICES, Claim, Judgement, Traced, forfeited, split
from weighbridge.execution.dispute.asking import judge as judged_by_worker
from weighbridge.execution.dispute.leaves import NO_INPUT, first_difference
from weighbridge.execution.dispute.messages import (
    START,
    Answer,
    Challenge,
    Course,
    DisputeError,
    Message,
    Parts,
    Ruling,
    Shown,
    read,
    signed,
    unpack,
)
from weighbridge.transcript.state import state_digest

CHALLENGER, DEFENDER = 0, 1
NAMES = ("challenger", "defender")
CLOCK = 3600.0
"""Seconds that a party has for its messages, unless the parties agree on others."""

Judge = Callable[[Claim, bytes], Judgement]
Due = Literal["course", "challenge", "answer", "parts", "opening", "nothing"]


@dataclass
class Dispute:
    """A dispute as far as it has come; referee, parties and later readers all follow it by this.

    Attributes:
        parties: Raw public keys of challenger and defender (32 bytes each).
        messages: Those of the parties, in order.
        openings: By party, what it showed.
        parts: By party, the parts of the result that it named.
    """

    parties: tuple[bytes, bytes]
    messages: list[Message] = field(default_factory=list)
    openings: dict[int, bytes] = field(default_factory=dict)
    parts: dict[int, Parts] = field(default_factory=dict)
    _challenge: Challenge | None = None
    _answer: Answer | None = None
    _claims: tuple[tuple[bytes, ...], tuple[bytes, ...]] = ((), ())
    _leaf: int | None = None
    _courses: list[Course] = field(default_factory=list)
    _step: int | None = None

    @property
    def head(self) -> bytes:
        """The head that the next message must name (32 bytes)."""
        return self.messages[-1].head if self.messages else START

    @property
    def leaf(self) -> int | None:
        """The first leaf that differs, or how many there are if none does; None as long as that is unknown."""
        return self._leaf

    @property
    def part(self) -> int | None:
        """The first chunk of the disputed result that differs; None if the operation is judged whole, or not yet known.

        Where parties name as many chunks as the other one and some more, no chunk is disputed that both have.
        """
        if len(self.parts) < len(NAMES):
            return None
        one, other = (split(self.parts[party].parts) for party in (CHALLENGER, DEFENDER))
        found = first_difference(one, other)
        return found if found is not None and found < min(len(one), len(other)) else None

    @property
    def narrowing_over(self) -> bool:
        """Whether an opening is all that may still be sent: both parties named parts, or one has shown all."""
        return bool(self.parts or self.openings)

    @property
    def equal(self) -> bool:
        """Whether both parties name the same leaves of the same record: there is nothing to open."""
        first, second = self._claims
        return self._leaf is not None and self.common and first == second

    @property
    def step(self) -> int | None:
        """The step that is disputed; None as long as that is unknown, or if there is none."""
        return self._step

    @property
    def common(self) -> bool:
        """Whether the parties are talking about the same step: the defender answered, and on the disputed record."""
        challenge, answer = self._challenge, self._answer
        if self.apart:
            return False
        if challenge is None or answer is None:
            return True
        return answer.record != b"" and (challenge.own or answer.record == challenge.record)

    @property
    def apart(self) -> bool:
        """Whether both courses were named and there is no step to dispute between them."""
        return len(self._courses) == len(NAMES) and self._step is None

    @property
    def unanswered(self) -> bool:
        """Whether the defender says that the challenge is not about the step at which the courses part."""
        return bool(self._courses) and self._answer is not None and not self._answer.record

    @property
    def courses(self) -> tuple[Course, ...]:
        """The courses that were named, the challenger's first."""
        return tuple(self._courses)

    @property
    def alike(self) -> bool:
        """Whether two trainings have the same leaves beside records that are not the same."""
        challenge, answer = self._challenge, self._answer
        if challenge is None or answer is None or not challenge.own or self._courses:
            return False
        return self._claims[CHALLENGER] == self._claims[DEFENDER] and challenge.record != answer.record

    def due(self) -> tuple[int, Due]:
        """Returns whose turn it is, and with what."""
        if len(self._courses) == 1:
            return DEFENDER, "course"
        if self.apart:
            return CHALLENGER, "nothing"
        if self._challenge is None:
            return CHALLENGER, "challenge"
        if self._answer is None:
            return DEFENDER, "answer"
        if len(self.parts) == 1:
            return 1 - next(iter(self.parts)), "parts"
        for party in (CHALLENGER, DEFENDER):
            if (
                self.common
                and self._leaf is not None
                and self._leaf < len(self._claims[party])
                and party not in self.openings
            ):
                return party, "opening"
        return CHALLENGER, "nothing"

    def take(self, message: Message) -> None:
        """Takes a party's message.

        Raises:
            DisputeError: It is not what is due, or not from the party whose turn it is. The dispute stays as it was.
        """
        party, due = self.due()
        if due == "nothing" or message.key != self.parties[party] or message.previous != self.head:
            raise DisputeError(f"Expected is {due} of the {NAMES[party]} after the last message, and nothing else.")
        match message.content, due:
            case Course() as course, "challenge" if not self.messages:
                self._courses.append(course)
            case Course() as course, "course":
                self._courses.append(course)
                self._step = parting(*self._courses)
            case Challenge() as challenge, "challenge":
                if self._courses and not self._named(challenge):
                    raise DisputeError("Expected is the challenger's own record of the step at which the courses part.")
                self._challenge, self._step = challenge, challenge.step
            case Answer() as answer, "answer":
                assert self._challenge is not None
                self._answer, self._claims = answer, (split(self._challenge.leaves), split(answer.leaves))
                found = first_difference(*self._claims)
                self._leaf = len(self._claims[DEFENDER]) if found is None else found
                if self._courses and found is None and self._challenge.record != answer.record:
                    self._leaf = max(self._leaf - 1, 0)  # one of two states at most is that of the last leaf
            case Parts() as parts, "parts" | "opening" if party not in self.parts and not self.openings:
                self.parts[party] = parts
            case Shown() as shown, "opening":
                self.openings[party] = shown.opening
            case _:
                raise DisputeError(f"Expected is {due} of the {NAMES[party]}, and nothing else.")
        self.messages.append(message)

    def _named(self, challenge: Challenge) -> bool:
        """Says whether a challenge names the step at which the courses part, and the state before it.

        What its record and its program say is judged: only a confined worker decodes them.
        """
        course, step = self._courses[CHALLENGER], self._step
        assert step is not None, "a challenge is due"
        agreed = split(course.states)[step - 1] if step else state_digest({}, {})
        said = challenge.step, challenge.own, challenge.terms, challenge.state
        return said == (step, True, course.terms, agreed)

    def claim(self, party: int) -> Claim | None:
        """Returns what a party claims of the first leaf that differs, if it claims anything."""
        challenge, answer, index = self._challenge, self._answer, self._leaf
        if challenge is None or answer is None or index is None:
            return None
        leaves = self._claims[party]
        if party == CHALLENGER and index >= len(leaves) and not self._courses:
            return None  # it denies the other's leaf
        mine = challenge if party == CHALLENGER else answer
        return Claim(
            terms=challenge.terms,
            tape=challenge.tape,
            state=challenge.state,
            record=mine.record,
            log=mine.log,
            own=party == DEFENDER or challenge.own,
            count=len(leaves),
            index=index,
            leaf=leaves[index] if index < len(leaves) else b"",
            previous=leaves[index - 1] if index else b"",
            first=leaves[0] if index else b"",
            left=split(self._courses[party].states)[challenge.step] if self._courses else b"",
            input=split(self._courses[party].inputs)[challenge.step] if self._courses else b"",
            step=challenge.step if self._courses else None,
            answered=not self.unanswered,
            part=self.part,
            parts=self.parts[party].parts if self.part is not None else b"",
            shown=self.parts[party].leaf if self.part is not None else b"",
        )


_NO_GROUND = Judgement(
    "undecided",
    "dispute.ground",
    "the parties do not agree on which step is disputed; compare the signed transcripts",
)


_NO_STEP = Judgement(
    "undecided",
    "dispute.ground",
    "the courses are equal, or they part in what a step begins with, or at a step that cannot be disputed; compare the "
    "signed transcripts",
)


_NO_DIFFERENCE = Judgement(
    "undecided",
    "dispute.records",
    "the parties name the same leaves and have other records of them; dispute that record without --own",
)


def judgements(dispute: Dispute, judge: Judge) -> list[tuple[int, Judgement]]:
    """Returns what is said of each claim of a dispute whose parties have said all."""
    if dispute.apart:
        return [(party, _no_step(*dispute.courses)) for party in (CHALLENGER, DEFENDER)]
    if dispute.unanswered:
        return _unanswered(dispute, judge)
    if not dispute.common:
        return [(party, _NO_GROUND) for party in (CHALLENGER, DEFENDER)]
    if dispute.alike:
        return [(party, _NO_DIFFERENCE) for party in (CHALLENGER, DEFENDER)]
    found = []
    for party in (CHALLENGER, DEFENDER):
        claim = dispute.claim(party)
        if claim is not None:
            found.append((party, judge(claim, dispute.openings.get(party, b""))))
            if party == CHALLENGER and found[-1][1].code == "dispute.course":
                break  # the defender's claim rests on the program that the challenge names
    return found


def _no_step(one: Course, other: Course) -> Judgement:
    try:
        why = _apart(one.terms, other.terms)
    except FormatError:
        why = ""
    return Judgement("undecided", "dispute.slices", why) if why else _NO_STEP


def _unanswered(dispute: Dispute, judge: Judge) -> list[tuple[int, Judgement]]:
    """Rules on a challenge that the defender says is about something else than the step at which the courses part."""
    claim = dispute.claim(CHALLENGER)
    assert claim is not None, "there are courses and an answer"
    found = judge(claim, b"")
    if found.verdict == "admissible":
        return [(DEFENDER, forfeited("the defender shows no record of the step at which the courses part"))]
    if found.verdict == "undecided":
        return [(party, found) for party in (CHALLENGER, DEFENDER)]
    return [(CHALLENGER, found)]


class Referee:
    """Runs one dispute: takes messages, keeps the clocks, and rules.

    Attributes:
        dispute: How far it has come.
        ruling: The referee's last word, once there is one.
    """

    def __init__(
        self, parties: tuple[bytes, bytes], key: SigningKey, *, judge: Judge = judged_by_worker, clock: float = CLOCK,
        now: Callable[[], float] = time.monotonic, used: tuple[float, float] = (0.0, 0.0),
    ) -> None:  # fmt: skip
        """Opens a dispute; the challenger's clock runs from now on.

        Args:
            parties: Raw public keys of challenger and defender (32 bytes each).
            key: Signs the ruling.
            judge: Judges claims.
            clock: Seconds that each party has.
            now: Reads the time in seconds.
            used: What each party has used of its clock already, if the dispute goes on after a restart.
        """
        self.dispute = Dispute(parties)
        self.ruling: Message | None = None
        self._key, self._judge, self._clock, self._now = key, judge, clock, now
        self._used, self._sent = [*used], [0, 0]
        self._since = now()

    @property
    def used(self) -> tuple[float, float]:
        """Seconds that each party has used of its clock, as of the last message or tick."""
        return self._used[0], self._used[1]

    def post(self, data: bytes) -> None:
        """Takes a message as it was sent, and rules once all was said.

        Raises:
            FormatError, DisputeError: It is no message that is due now. Its sender's clock runs on.
        """
        self.take(data)
        self.judge()

    def take(self, data: bytes) -> None:
        """Takes a message as it was sent, and stops the clocks if all was said; `judge` rules then.

        Raises:
            FormatError, DisputeError: It is no message that is due now. Its sender's clock runs on.
        """
        self.tick()
        if self.ruling is not None:
            raise DisputeError("The dispute is over; open another one.")
        self.resume(data)

    def resume(self, data: bytes) -> None:
        """Takes a message that was taken before a restart, whose time is counted in `used`.

        Raises:
            FormatError, DisputeError: It is none that was due then.
        """
        party, _ = self.dispute.due()
        self.dispute.take(read(data))
        self._sent[party] += len(data)
        self._since = self._now()

    def judge(self) -> None:
        """Rules if all was said and nothing was ruled; no clock runs meanwhile."""
        if self.ruling is None and self.dispute.due()[1] == "nothing":
            began = self._now()
            found = judgements(self.dispute, self._judge)
            self._rule(found, self._now() - began)

    def tick(self) -> None:
        """Charges the party whose turn it is, and rules that it forfeits if its clock has run out."""
        party, due = self.dispute.due()
        if self.ruling is not None or due == "nothing":
            return
        now = self._now()
        self._used[party] += now - self._since
        self._since = now
        if self._used[party] > self._clock:
            self._rule([(party, forfeited(f"the {NAMES[party]} sent no {due} within {self._clock:g} s"))], 0.0)

    def log(self) -> list[Message]:
        """Returns all messages so far, the ruling last."""
        return [*self.dispute.messages, *([] if self.ruling is None else [self.ruling])]

    def _rule(self, found: list[tuple[int, Judgement]], judged: float) -> None:
        leaf = -1 if self.dispute.leaf is None else self.dispute.leaf
        ruling = Ruling(
            leaf=leaf, claims=[(party, each.verdict, each.code, each.reason) for party, each in found],
            seconds=(self._used[0], self._used[1]), clock=self._clock, sent=(self._sent[0], self._sent[1]),
            judged=judged,
        )  # fmt: skip
        self.ruling = signed(self.dispute.head, ruling, self._key)


@dataclass(frozen=True)
class Checked:
    """What a finished dispute says.

    Attributes:
        parties: Keys of challenger and defender.
        referee: Key of the referee.
        ruling: Its ruling.
        again: What the one who checks says of the claims that the referee judged, with their party.
        agrees: Whether that is what the ruling says.
    """

    parties: tuple[bytes, bytes]
    referee: bytes
    ruling: Ruling
    again: list[tuple[int, Judgement]]
    agrees: bool


def verify(data: bytes, judge: Judge = judged_by_worker) -> Checked:
    """Checks a finished dispute from its file alone: signatures, order, the leaf, and every judgement once more.

    A forfeit by the clock is the referee's word: no other party saw the time.

    Args:
        data: The file.
        judge: Judges claims.

    Raises:
        FormatError: It is no such file.
        DisputeError: A signature does not verify, a message is out of its turn, or there is no ruling.
    """
    *said, last = list(unpack(data))
    if not isinstance(last.content, Ruling):
        raise DisputeError("The dispute has no ruling yet; ask the referee.")
    challenger = said[0].key if said else last.key
    defender = next((message.key for message in said[1:] if isinstance(message.content, Course | Answer)), bytes(32))
    dispute = Dispute((challenger, defender))
    for message in said:
        dispute.take(message)
    ruling = last.content
    party, due = dispute.due()
    if due != "nothing":
        agrees = [(c[0], c[1]) for c in ruling.claims] == [(party, "forfeit")] and ruling.seconds[party] > ruling.clock
        return Checked(dispute.parties, last.key, ruling, [], agrees)
    again = judgements(dispute, judge)
    sent = tuple(sum(len(m.data) for m in said if m.key == key) for key in dispute.parties)
    agrees = (
        ruling.leaf == (-1 if dispute.leaf is None else dispute.leaf)
        and [(party, each.verdict, each.code) for party, each in again] == [claim[:3] for claim in ruling.claims]
        and (sent == tuple(ruling.sent) or challenger == defender)
    )
    return Checked(dispute.parties, last.key, ruling, again, agrees)


def parting(one: Course, other: Course) -> int | None:
    """Returns the first step after which the states of two courses differ.

    Returns:
        The step; None if there is none, if the courses part before it in their terms or in what it begins with, or if
        it cannot be disputed.
    """
    if one.terms != other.terms:
        return None
    step = first_difference(split(one.states), split(other.states))
    if step is None or step >= min(len(one.states), len(other.states)) // DIGEST_SIZE:
        return None
    mine, yours = split(one.inputs)[step], split(other.inputs)[step]
    return step if mine == yours != NO_INPUT else None


def other_tables(mine: bytes, dispute: Dispute) -> str:
    """Says what a party is told before it speaks whose table of slices is not the other one's; "" if it is.

    A party that goes on loses nothing: parties with other terms have no step to dispute.

    Args:
        mine: The party's terms, encoded.
        dispute: What was said so far.

    Raises:
        FormatError: What the other party said is no terms.
    """
    said = next((each.content for each in dispute.messages if isinstance(each.content, Course | Challenge)), None)
    return "" if said is None else _apart(said.terms, mine)


def _apart(challenger: bytes, defender: bytes) -> str:
    one, other = _table(challenger), _table(defender)
    if one == other:
        return ""
    return (
        f"the parties have other tables of slices, the challenger {one} and the defender {other}; both and the referee "
        "need one version"
    )


def _table(terms: bytes) -> str:
    raw = decode_cbor(terms, max_depth=8, max_items=1 << 10)
    found = raw.get(SLICES, "none") if isinstance(raw, dict) else "none"
    return found[:64] if isinstance(found, str) and found[:64].isalnum() else "none"


def challenge(mine: Traced, step: int, *, own: bool) -> Challenge:
    """Returns the message that opens a dispute.

    Args:
        mine: The challenger's tree.
        step: Number of the step.
        own: Whether the record is the challenger's own; else it is the one that it disputes.
    """
    return Challenge(
        terms=mine.terms, tape=mine.tape, state=mine.state, step=step, record=mine.record, own=own,
        log=mine.log, leaves=b"".join(mine.leaves),
    )  # fmt: skip


def answer(mine: Traced | None, asked: Challenge) -> Answer:
    """Returns the defender's answer; an empty one if the challenge is about another step than that of the defender.

    Args:
        mine: The defender's tree; None of a step that cannot be disputed.
        asked: The challenge.
    """
    if mine is None or (mine.terms, mine.tape, mine.state) != (asked.terms, asked.tape, asked.state):
        return Answer(record=b"", log=bytes(32), leaves=b"")
    return Answer(record=mine.record, log=mine.log, leaves=b"".join(mine.leaves))
