"""The game: leaf hashes of both parties, the first that differs, and its openings.

Two parties who part at a step that neither knows yet begin with their courses: the digests of all their states, of long
trainings in ranges, of which both then show one. The first that differs names the step, and the step records that
follow have to fit the courses. Of the step itself a party sends two messages at most: its leaf hashes, the challenger
first, and one opening.

Here messages are compared as bytes. What a record or a program in them says, the confined worker reads that judges.
What parties say is made in `moves` and `ranges`, what is ruled of their claims in `rulings`, and the clocks run in
`refereeing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from weighbridge.execution.dispute.asking import Claim, split
from weighbridge.execution.dispute.confidential import require_open
from weighbridge.execution.dispute.leaves import first_difference, tree_root
from weighbridge.execution.dispute.memory_game import MemoryGame
from weighbridge.execution.dispute.memory_messages import Equality
from weighbridge.execution.dispute.messages import (
    RANGE,
    START,
    Answer,
    Challenge,
    Course,
    DisputeError,
    Message,
    Parts,
    Range,
    Shown,
)
from weighbridge.execution.dispute.ranges import Parting, apart, by_ranges, fits, parting, require_spoken
from weighbridge.execution.dispute.signed_trees import binding, require

CHALLENGER, DEFENDER = 0, 1
NAMES = ("challenger", "defender")

Due = Literal["course", "range", "challenge", "answer", "parts", "opening", "doubt", "layer", "nothing"]


@dataclass
class Dispute:
    """A dispute as far as it has come; referee, parties and later readers all follow it by this.

    Attributes:
        parties: Raw public keys of challenger and defender (32 bytes each).
        messages: Those of the parties, in order.
        openings: By party, what it showed.
        parts: By party, the parts of the result that it named.
        memory: How far a dispute about a chip's memory has come; None if it is about a step.
        bound: Whether each record is known to be that of a transcript that its party stands by. Then records that
            differ beside the same leaves are judged by the last leaf: the run of a false one shows none.
    """

    parties: tuple[bytes, bytes]
    messages: list[Message] = field(default_factory=list)
    openings: dict[int, bytes] = field(default_factory=dict)
    parts: dict[int, Parts] = field(default_factory=dict)
    memory: MemoryGame | None = None
    bound: bool = False
    _challenge: Challenge | None = None
    _answer: Answer | None = None
    _claims: tuple[tuple[bytes, ...], tuple[bytes, ...]] = ((), ())
    _leaf: int | None = None
    _courses: list[Course] = field(default_factory=list)
    _ranges: list[Range] = field(default_factory=list)
    _range: int | None = None
    _parting: Parting | None = None
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
        return len(self._courses) == len(NAMES) and self._step is None and not self._seeks

    @property
    def _seeks(self) -> bool:
        """Whether a range that both courses have otherwise is still to be shown by one party or both."""
        return self._range is not None and len(self._ranges) < len(NAMES)

    @property
    def disputed_range(self) -> int | None:
        """The first range in which the courses differ, if they are by ranges; None as long as that is unknown."""
        return self._range

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
        if challenge is None or answer is None or not challenge.own or self._courses or self.bound:
            return False
        return self._claims[CHALLENGER] == self._claims[DEFENDER] and challenge.record != answer.record

    def due(self) -> tuple[int, Due]:
        """Returns whose turn it is, and with what."""
        if self.memory is not None:
            return self.memory.due()
        if len(self._courses) == 1:
            return DEFENDER, "course"
        if self._seeks:
            return len(self._ranges), "range"
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
            DisputeError: It is not what is due, not from the party whose turn it is, or of a confidential run. The
                dispute stays as it was.
        """
        party, due = self.due()
        if due == "nothing" or message.key != self.parties[party] or message.previous != self.head:
            raise DisputeError(f"Expected is {due} of the {NAMES[party]} after the last message, and nothing else.")
        if isinstance(message.content, Challenge | Course):
            require_open(message.content.terms)
        if isinstance(message.content, Course):
            require_spoken(message.content)
        match message.content, due:
            case content, _ if self.memory is not None:
                self.memory.take(content)
            case Equality() as said, "challenge" if not self.messages:
                self.memory = MemoryGame.open(said)
            case Course() as course, "challenge" if not self.messages:
                self._courses.append(course)
            case Course() as course, "course":
                self._courses.append(course)
                self._compare()
            case Range() as shown, "range":
                assert self._range is not None
                if not fits(self._by_ranges()[party], self._range, shown):
                    raise DisputeError(f"Expected is range {self._range} of the course that the {NAMES[party]} named.")
                self._ranges.append(shown)
                if not self._seeks:
                    self._part(parting(self._ranges[0], self._ranges[1], self._range * RANGE))
            case Challenge() as challenge, "challenge":
                if self._courses and not self._named(challenge):
                    raise DisputeError("Expected is the challenger's own record of the step at which the courses part.")
                require(challenge.supplements, challenge.step, None if challenge.own else challenge.draft)
                self._challenge, self._step = challenge, challenge.step
            case Answer() as answer, "answer":
                asked = self._challenge
                assert asked is not None
                require(answer.supplements, asked.step, None if asked.own else asked.draft)
                self._answer, self._claims = answer, (split(asked.leaves), split(answer.leaves))
                found = first_difference(*self._claims)
                self._leaf = len(self._claims[DEFENDER]) if found is None else found
                if (self._courses or self.bound) and found is None and asked.record != answer.record:
                    self._leaf = max(self._leaf - 1, 0)  # one of two states at most is that of the last leaf
            case Parts() as parts, "parts" | "opening" if party not in self.parts and not self.openings:
                self.parts[party] = parts
            case Shown() as shown, "opening":
                self.openings[party] = shown.opening
            case _:
                raise DisputeError(f"Expected is {due} of the {NAMES[party]}, and nothing else.")
        self.messages.append(message)

    def _by_ranges(self) -> list[Course]:
        return [by_ranges(each) for each in self._courses]

    def _compare(self) -> None:
        """Looks for the step at which two courses part, or for the range, if one course is by ranges."""
        if any(each.count for each in self._courses):
            self._range = apart(*self._by_ranges())
        else:
            self._part(parting(self._courses[0], self._courses[1]))

    def _part(self, found: Parting | None) -> None:
        self._parting, self._step = found, None if found is None else found.step

    def _named(self, challenge: Challenge) -> bool:
        """Says whether a challenge names the step at which the courses part, and the state before it.

        What its record and its program say is judged: only a confined worker decodes them.
        """
        found = self._parting
        assert found is not None, "a challenge is due"
        said = challenge.step, challenge.own, challenge.terms, challenge.state
        return said == (found.step, True, self._courses[CHALLENGER].terms, found.before)

    def claim(self, party: int) -> Claim | None:
        """Returns what a party claims of the first leaf that differs, if it claims anything."""
        challenge, answer, index = self._challenge, self._answer, self._leaf
        if challenge is None or answer is None or index is None:
            return None
        leaves = self._claims[party]
        if party == CHALLENGER and index >= len(leaves) and not self._courses:
            return None  # it denies the other's leaf
        mine = challenge if party == CHALLENGER else answer
        shown = [*challenge.supplements, *answer.supplements]
        signed = binding(shown, self.parties[party], mine.draft if challenge.own else challenge.draft)
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
            left=self._parting.left[party] if self._parting else b"",
            input=self._parting.input if self._parting else b"",
            step=challenge.step if self._courses else None,
            answered=not self.unanswered,
            part=self.part,
            parts=self.parts[party].parts if self.part is not None else b"",
            shown=self.parts[party].leaf if self.part is not None else b"",
            rival=self.openings.get(1 - party, b"") if self.part is not None else b"",
            root=tree_root(leaves) if signed else b"",
            supplements=signed,
        )
