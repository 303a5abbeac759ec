"""Which rules the starts of generators follow at one place of a program, and which rule the next start should follow.

Programs do the same again: they go on, or seed a generator with a number that grows by one, or do either every so many
steps. So a place has a rule in force, and what was done at equal distances twice is expected at that distance again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WORD = 1 << 64
"""Counters are modulo this."""

Rule = Literal["number", "tape", "on", "back", "again"] | int
"""Of a generator's start in a step: on from its number's end; or from its number's end in the last step of that tape.
Of a draw: on from the one before; back to where it was before the last jump; at the offset of the same draw on the tape
that was new last. Of both: so far from the seed before."""
Rules = dict[Rule, int | None]
"""Where rules have a start."""


@dataclass(slots=True)
class Site:
    """A place where draws start, in step after step: the first of a generator, or the n-th, if it ever did not go on.

    Attributes:
        seeded: The last start that followed from no counter, only from the seed before it or from nothing.
        rule: The rule in force.
        apart: How far the last start that followed from nothing was from the seed before it; None before there was one.
        habit: How many starts it was to the last one by another rule, and which; None if something else came last.
        regular: Whether that was as at the time before, so that it is expected again.
        waited: Starts since then.
        offset: Its offset on the tape that was new last.
    """

    seeded: int
    rule: Rule
    apart: int | None = None
    habit: tuple[int, Rule] | None = None
    regular: bool = False
    waited: int = 0
    offset: int | None = None

    @property
    def due(self) -> Rule:
        """The rule that the next start is expected to follow."""
        if self.regular and self.habit is not None and self.waited + 1 == self.habit[0]:
            return self.habit[1]
        return self.rule

    def follow(self, rule: Rule) -> None:
        """Notes which rule a start followed."""
        due, self.waited = self.due, self.waited + 1
        if rule == self.rule:
            self.regular = self.regular and due == rule
            return
        if self.waited == 1 and self.habit is not None and self.habit[1] == rule:
            self.rule, self.habit, self.regular = rule, None, False
        else:
            now = self.waited, rule
            self.habit, self.regular = now, now == self.habit
        self.waited = 0

    def begin_anew(self, start: int) -> None:
        """Notes a start that followed from nothing."""
        self.apart, self.seeded = (start - self.seeded) % WORD, start
        self.habit, self.regular, self.waited = None, False, 0
