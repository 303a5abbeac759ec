"""What a row of the attack catalogue is, and what comes of trying it once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redteam.workshop import Workshop


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one attempt came to.

    Attributes:
        findings: Identifiers of all findings that accuse: violations and warnings, not infos.
        gain: How far the adversary got, as the row's `gains` says; 0 nothing, 1 all that was wanted.
        cost: FLOPs of what the adversary shows and prepares, relative to honest training of as many steps.
        control: Whether the tolerance verifier of proof-of-learning accepts the same attack; None if it is not asked.
    """

    findings: frozenset[str]
    gain: float
    cost: float
    control: bool | None = None


Attack = Callable[["Workshop", int], Outcome]
"""Tries an attack for real, with a seed."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One attack.

    Attributes:
        name: Names it, in a few words.
        source: Who described it.
        wants: What the adversary wants.
        gains: What the gain measures.
        attack: Tries it.
        expected: Findings that must all be there; none if the attack is not caught.
        chips: Of fifty chips of a run, how many show it when they are drawn; 0 if no chip needs to be drawn.
        least: The gain below which the attack has failed, so that trying it shows nothing.
        note: What else a reader should know: above all why something is not caught.
    """

    name: str
    source: str
    wants: str
    gains: str
    attack: Attack
    expected: tuple[str, ...] = ()
    chips: int = 50
    least: float = 0.5
    note: str = ""

    def as_said(self, outcome: Outcome) -> bool:
        """Whether an attempt was caught as expected or, where nothing is expected, accused of nothing."""
        return set(self.expected) <= outcome.findings if self.expected else not outcome.findings
