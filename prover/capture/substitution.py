"""Puts a formula's own value in the place of the one that the program computed, before an operation uses it.

A program computes its learning rate in some order and with some libm, so it often lies a few units in the last place
beside what the declared formula gives. Such a number cannot be told from one that was chosen, and a Verifier counts it
as bits. So an operation's scalar operand is replaced by the formula's value, which is the same on every machine, and
recording and replay both compute with that. The program's own variables stay as they are.

Which formula an operand follows is found from its values: those formulas stay that had been near it in each step. An
operand that has not changed so far may also be a constant of the program that is near a formula by accident, so it
goes on as it was recorded first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weighbridge.program.explanations import Candidate, Explanations, Near, pattern
from weighbridge.transcript.formula_arithmetic import WIDEST
from weighbridge.transcript.formula_terms import Formulas
from weighbridge.transcript.steps import Scalar

MAX_PLACES = 1 << 20
"""Most operands that are remembered; a program whose steps have more goes on with its own values."""

_RECENT = 8
"""Of how many different host values, the last ones, an operand may be a function."""

Place = tuple[str, int, int]
"""Which operand of a step: the operation, how many came before it, and how many values."""


@dataclass(slots=True)
class _Operand:
    """What is known of an operand from earlier steps.

    Attributes:
        first: Bits of the program's value when it came first.
        recorded: What was recorded then.
        candidates: The formulas that have been near it.
        constant: Whether the program's value has been the same in every step.
    """

    first: int
    recorded: float
    candidates: frozenset[Candidate]
    constant: bool = True


class Substitution:
    """What to execute the operations of a recording with.

    Attributes:
        replaced: How many values were replaced so far.
    """

    def __init__(self, formulas: Formulas) -> None:
        self.replaced = 0
        self._formulas = formulas
        self._operands: dict[Place, _Operand] = {}
        self._step = Explanations(formulas, 0, ())
        self._hosts: Sequence[Scalar] = ()
        self._given: Sequence[Scalar] | None = None
        self._every: tuple[int, frozenset[Candidate]] | None = None

    def begin(
        self, t: int, hosts: Sequence[Scalar], given: Sequence[Scalar] | None = None, counts: Sequence[int] = ()
    ) -> None:
        """Begins a step.

        Args:
            t: How many steps of kind `step` there were, this one included.
            hosts: The step's host values, to which the step adds.
            given: What was recorded, if the step was recorded before and is only computed again.
            counts: How far the schedules are.
        """
        self._step = Explanations(self._formulas, t, hosts, counts)
        self._hosts, self._given, self._every = hosts, given, None

    def explaining(self, t: int, hosts: Sequence[Scalar], counts: Sequence[int]) -> Explanations:
        """Returns what formulas give in a step that has such numbers; operands as for `begin`."""
        return Explanations(self._formulas, t, hosts, counts)

    def candidates(self, place: Place) -> tuple[frozenset[Candidate], bool]:
        """Returns the formulas that have been near an operand in each step, and whether it has never changed."""
        known = self._operands.get(place)
        return (frozenset(), True) if known is None else (known.candidates, known.constant)

    @property
    def step(self) -> Explanations:
        """What formulas give in the present step, or in the last one."""
        return self._step

    def value(self, place: Place, value: float) -> float:
        """Returns what an operation is to be executed with; `value` itself if nothing is put in its place."""
        if value != value:
            return math.nan  # of all that are no numbers the one that a record can hold
        if not self._formulas.items:
            return value
        bits = pattern(value)
        known = self._operands.get(place)
        if known is not None and known.constant and known.first == bits and self._given is None:
            exact = known.recorded
        elif self._given is None:
            exact = self._recorded(place, value, bits, known)
        else:
            exact = self._again(place, value, self._given)
        if exact is value or pattern(exact) == bits:
            return value
        self.replaced += 1
        return exact

    def _recorded(self, place: Place, value: float, bits: int, known: _Operand | None) -> float:
        if known is None:
            if len(self._operands) >= MAX_PLACES:
                return value
            near = self._step.near(value, self._all())
            exact = self._nearest(value, bits, near)
            self._operands[place] = _Operand(bits, exact, near.candidates)
            return exact
        known.constant = False
        near = self._step.near(value, known.candidates)
        if not near.candidates:
            near = self._step.near(value, self._all())
        known.candidates = near.candidates
        return self._nearest(value, bits, near)

    def _again(self, place: Place, value: float, given: Sequence[Scalar]) -> float:
        """Returns what was recorded, if the program computes about the same again."""
        recorded = given[place[2]] if place[2] < len(given) else None
        if type(recorded) is not float or not abs(recorded - value) <= WIDEST * abs(value):
            return value  # the results will differ, which is reported
        if place not in self._operands and len(self._operands) < MAX_PLACES:
            self._operands[place] = _Operand(pattern(value), recorded, self._step.near(value, self._all()).candidates)
        return recorded

    def _all(self) -> frozenset[Candidate]:
        if self._every is None or self._every[0] != len(self._hosts):
            self._every = len(self._hosts), self._step.recent(_RECENT)
        return self._every[1]

    def _nearest(self, value: float, bits: int, near: Near) -> float:
        if len(near.apart) < len(near.candidates) or not near.candidates or self._step.read(bits):
            return value  # a formula gives these very bits, or none does, or they were read back
        return float(self._step.gives(min(near.apart, key=lambda each: (near.apart[each], each)))[0])
