"""Where generators start: what the counters of a run's draws follow from, and how many bits a Prover chose with them.

A draw is a function of the run's seed, the generator's number and a counter of 64 bits. A Prover that chooses the
counter chooses the draw. So a generator has to go on: each draw in a step is at the counter after the one before, and
the first draw in a step is where the same generator ended. A start that does not follow is charged as what it takes to
describe, in a code with words for all starts. Whatever a Prover wants to bring in through starts, the words are at
least as long.

A start follows from a rule: it goes on where this number ended, or where it ended in the last step of the same program
(two generators of the program's own that take turns have the same number), or it lies as far from the last seed as that
seed from the one before (a program that seeds with the step's number). The rule in force is free; all else costs bits,
little if it is a counter that the run has been at (recomputation, restored state) or a number near one that is known
(a small seed, the epoch, the run's seed). A draw in the middle of a step that does not go on is a start too.

Jumps within a step are on the tape, so they are charged once, when the tape first runs. Which generator draws is part
of the structure of programs, which is charged there. Only records and tapes are looked at and nothing is executed, so
the replay of a few steps charges all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from weighbridge.core.errors import TapeError
from weighbridge.core.integer_codes import gamma_bits, signed_bits
from weighbridge.program.chosen_bits import ChosenBits
from weighbridge.program.start_rules import WORD, Rules, Site
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape

UNSEEDED = 67280421310721
"""Where PyTorch starts a generator without a seed (`c10::detail::default_rng_seed_val`)."""

DEFAULTS = 2
"""Numbers below this belong to PyTorch's own generators, which a Recorder seeds with 0."""

_KINDS = math.log2(5)
"""A start is told as: another rule, a counter of this step, one of the run, near a known number, any number."""
_RULES = 2.0
"""At most four rules besides the one in force."""


def counter(record: StepRecord, number: int, offset: int) -> int:
    """Returns the counter of a draw, for those who charge it and for those who execute it alike.

    Args:
        record: The record of the step.
        number: Of the generator.
        offset: The draw's, as the tape has it.

    Raises:
        TapeError: The record does not say where that generator was.
    """
    span = record.rng.get(str(number))
    if span is None:
        raise TapeError(
            f"step {record.step} draws from generator {number}, which its record does not name; ask the Prover for the "
            "transcript as it was recorded"
        )
    return (span[0] + offset) % WORD


def charge(transcript: Transcript, tapes: Callable[[bytes], Tape], chosen: ChosenBits) -> None:
    """Counts what a Prover chose with the starts of generators, over a whole transcript.

    Args:
        transcript: A verified transcript.
        tapes: Returns the tape of a digest.
        chosen: The ledger; its channel `generators` is filled.

    Raises:
        TapeError: A record's counters are not those of its tape's draws.
    """
    seed = transcript.draft.get("seed")
    starts = Starts(seed if type(seed) is int else 0, chosen)
    for record in transcript.records():
        starts.step(record, tapes(record.tape))


@dataclass(slots=True)
class _Walk:
    """One generator on a new tape.

    Attributes:
        start: Counter of its first draw.
        back: Where it would be, had it not jumped last.
        next: Offset after its last draw.
        draws: How many there were.
        visited: Offsets where it was, after its last draw included.
    """

    start: int
    back: int
    next: int = 0
    draws: int = 0
    visited: set[int] = field(default_factory=lambda: {0})


class Starts:
    """Follows the counters of a run, step by step."""

    def __init__(self, seed: int, chosen: ChosenBits) -> None:
        """Begins a run.

        Args:
            seed: The run's seed.
            chosen: The ledger.
        """
        self._seed, self._chosen = seed, chosen
        self._ends: dict[int, int] = {}
        self._ends_of: dict[tuple[bytes, int], int] = {}
        self._sites: dict[tuple[int, int], Site] = {}
        self._known = {0, UNSEEDED}
        self._layouts: dict[bytes, dict[int, int]] = {}
        self._since = self._gap = 0
        self._anew: list[int] = []

    def step(self, record: StepRecord, tape: Tape) -> list[int]:
        """Charges one step.

        Args:
            record: Its record.
            tape: Its program.

        Returns:
            The counters at which generators start in it that follow from no rule.

        Raises:
            TapeError: The record's counters are not those of the tape's draws.
        """
        self._anew = []
        layout = self._layouts.get(record.tape)
        if layout is None:
            layout = self._layouts[record.tape] = self._first(record, tape)
        else:
            for number in layout:
                self._begin(record, number)
        ends = {str(number): counter(record, number, offset) for number, offset in layout.items()}
        if ends != {number: after for number, (_, after) in record.rng.items()}:
            raise TapeError(
                f"step {record.step}: the record's counters of randomness are not those after its draws; ask the "
                "Prover for the transcript as it was recorded"
            )
        for number in layout:
            end = self._ends[number] = self._ends_of[record.tape, number] = ends[str(number)]
            self._known |= {record.rng[str(number)][0], end}
        return self._anew

    def _first(self, record: StepRecord, tape: Tape) -> dict[int, int]:
        """Charges a step with a new tape; returns the offset after each generator's last draw, by first use."""
        walks: dict[int, _Walk] = {}
        for op, node in enumerate(tape.nodes):
            if node.draw is None:
                continue
            number, offset = node.draw[0], node.draw[1] % WORD
            walk = walks.get(number)
            if walk is None:
                back = self._ends.get(number, _unused(number))
                walk = walks[number] = _Walk(self._begin(record, number), back)
            self._draw(record, number, offset, walk, f"operation {op} ({node.op})")
            walk.next, walk.draws = (offset + 1) % WORD, walk.draws + 1
            walk.visited.add(walk.next)
        return {number: walk.next for number, walk in walks.items()}

    def _begin(self, record: StepRecord, number: int) -> int:
        """Charges where a generator starts in a step, and returns that counter."""
        start, unused = counter(record, number, 0), _unused(number)
        site = self._sites.setdefault((number, -1), Site(unused, "number"))
        end = self._ends.get(number, unused)
        rules: Rules = {"number": end, "tape": self._ends_of.get((record.tape, number))}
        self._charge(record.step, site, start, rules, end, 64.0, f"generator {number} starts")
        return start

    def _draw(self, record: StepRecord, number: int, offset: int, walk: _Walk, what: str) -> None:
        """Charges a draw on a new tape, unless it goes on as all draws of its place did so far."""
        site, on = self._sites.get((number, walk.draws)), offset == walk.next
        if site is None:
            if on:
                self._since += 1
                return
            site = self._sites[number, walk.draws] = Site(_unused(number), "on")
        start, expected = counter(record, number, offset), (walk.start + walk.next) % WORD
        rules: Rules = {"on": expected, "back": walk.back}
        if site.offset is not None:
            rules["again"] = (walk.start + site.offset) % WORD
        here = math.log2(len(walk.visited)) if offset in walk.visited else 64.0
        self._charge(record.step, site, start, rules, expected, here, f"{what} draws from generator {number}")
        site.offset = offset
        if not on:
            walk.back = expected

    def _charge(
        self, step: int, site: Site, start: int, rules: Rules, expected: int, here: float, what: str
    ) -> None:  # fmt: skip
        """Charges a start.

        Args:
            step: Number of the step.
            site: The place.
            start: The counter.
            rules: Where rules have it.
            expected: Where it would be if it went on.
            here: What it takes to tell it among the counters of this step.
            what: The start in words.
        """
        self._since += 1
        rules.update({apart: (site.seeded + apart) % WORD for apart in (site.apart, site.rule) if type(apart) is int})
        followed = [rule for rule, at in rules.items() if at == start]
        if not followed:
            near = (0, self._seed, step, expected, site.seeded)
            earlier = math.log2(len(self._known)) if start in self._known else 64.0
            self._pay(step, _KINDS + min(here, earlier, _distance(start, near)), f"{what} at {start}")
            site.begin_anew(start)
            self._anew.append(start)
            return
        rule = site.due if site.due in followed else followed[0]
        if rule != site.due:
            self._pay(step, _KINDS + _RULES, f"{what} at {start}")
        site.follow(rule)
        if type(rule) is int:
            site.seeded = start

    def _pay(self, step: int, bits: float, what: str) -> None:
        """Charges a choice, and that it was made here: the way from the last one, which may be as far as before."""
        where = 1 if self._since == self._gap else 1 + gamma_bits(self._since)
        self._since, self._gap = 0, self._since
        self._chosen.add("generators", step, where + bits, what)


def _unused(number: int) -> int:
    """Returns where a generator is before its first draw."""
    return 0 if number < DEFAULTS else UNSEEDED


def _distance(start: int, near: tuple[int, ...]) -> float:
    """Returns what it takes to tell a counter by its distance from the nearest of some numbers."""
    nearest = min(((start - number + WORD // 2) % WORD - WORD // 2 for number in near), key=abs)
    return math.log2(len(near)) + signed_bits(nearest)
