"""What a row of the attack catalogue is, and what comes of trying it once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from analysis.confidence import clopper_pearson

if TYPE_CHECKING:
    from redteam.workshop import Workshop

CERTAIN = 0.9999
"""Confidence of the interval in which a formula's p must lie beside a simulation."""


@dataclass(frozen=True, kw_only=True)
class Histories:
    """Fleets that were played out, where the adversary shows no chip anything false.

    Attributes:
        found: Histories in which the run was found.
        of: Histories.
        formula: The probability that a formula gives for it.
    """

    found: int
    of: int
    formula: float

    def agree(self) -> bool:
        """Whether the formula's p lies in the simulation's interval."""
        low, high = clopper_pearson(found=self.found, samples=self.of, confidence=CERTAIN)
        return bool(low <= self.formula <= high)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one attempt came to.

    Attributes:
        findings: Identifiers of all findings that accuse: violations and warnings, not infos.
        gain: How far the adversary got, as the row's `gains` says; 0 nothing, 1 all that was wanted.
        cost: FLOPs of what the adversary shows and prepares, relative to honest training of as many steps.
        control: Whether the tolerance verifier of proof-of-learning accepts the same attack; None if it is not asked.
        histories: Of a simulation, how often the run was found; None if something was shown to real chips.
    """

    findings: frozenset[str]
    gain: float
    cost: float
    control: bool | None = None
    histories: Histories | None = None


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
        most: The gain above which a defence has failed, where one bounds the gain.
        simulated: Whether fleets are played out, because no chip is shown anything false.
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
    most: float = math.inf
    simulated: bool = False
    note: str = ""

    @property
    def prevented(self) -> bool:
        """Whether the attack gets the adversary nothing, so that there is nothing to accuse it of."""
        return not self.expected and self.most <= 0

    def as_said(self, outcome: Outcome) -> bool:
        """Whether an attempt was caught as expected or, where nothing is expected, accused of nothing.

        A simulation came out as it should if it agrees with its formula.
        """
        if outcome.gain > self.most:
            return False
        if outcome.histories is not None:
            return outcome.histories.agree()
        return set(self.expected) <= outcome.findings if self.expected else not outcome.findings


comes_to_nothing = partial(Row, chips=0, least=0.0, most=0.0)
"""Makes a row of which the page says that a defence leaves it nothing to gain, without any draw."""
