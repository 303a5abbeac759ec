"""What the storages of a run hold, as far as data flow asks: on what content depends, and from what it follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

BATCH, FREE, STATE, SENT, CHANCE, WEIGHT, GRADIENT, PERHAPS = (1 << i for i in range(8))
"""What content depends on: the batch, an undeclared tensor, state that no step trains, what another rank sent, random
numbers, weights, a value on which both batch and weights had bearing; and that an index or mask decided about it."""

FEW_NUMBERS = 16
"""A reset: state replaced by what so few numbers of the program make (zeros, ones, an identity matrix)."""

FOREIGN = BATCH | FREE | STATE | SENT
BROUGHT = BATCH | FREE | SENT


class Content(NamedTuple):
    """What a storage holds.

    Attributes:
        kinds: What it depends on.
        follows: Whether some of it follows from state that training changes.
        foreign: What the bytes depend on that do not.
        numbers: How many numbers of programs made those bytes, up to a reset's and one more.
    """

    kinds: int = 0
    follows: bool = False
    foreign: int = 0
    numbers: int = 0


NOTHING = Content()


@dataclass(frozen=True, slots=True)
class Roles:
    """What the state of a run is for.

    Attributes:
        trained: Names of state that some step changes in dependence on its old value and on something else.
        weights: Names of state that holds weights: declared to the chip, or changed by way of a value on which the
            batch and that state itself had bearing.
    """

    trained: frozenset[str] = frozenset()
    weights: frozenset[str] = frozenset()


class Replacement(NamedTuple):
    """Trained state was replaced by content that follows from no trained state.

    Attributes:
        name: The state's name on the tape.
        op: The operation that completed it; the number of operations if another storage took the name.
        foreign: What the new content depends on.
        numbers: How many numbers of programs went into it.
    """

    name: str
    op: int
    foreign: int
    numbers: int

    def why(self) -> str:
        """Says what replaced it, or nothing if it was a reset."""
        return words(self.foreign) or ("constants of the program" if self.numbers > FEW_NUMBERS else "")


def words(kinds: int) -> str:
    """Says what content depends on, in words; empty if nothing is worth a word."""
    named = {
        "an undeclared tensor": FREE,
        "the batch": BATCH,
        "state that no step trains": STATE,
        "what another rank sent": SENT,
        "random numbers": CHANCE,
    }
    return " and ".join(text for text, kind in named.items() if kinds & kind)
