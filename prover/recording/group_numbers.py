"""Numbers in the groups of optimizers, such as rates: whether formulas give what they are before each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prover.capture.python_objects import Entry
from weighbridge.program.explanations import Candidate, Explanations, pattern


@dataclass(slots=True)
class _Setting:
    """One number.

    Attributes:
        last: What it was before the last step.
        candidates: The formulas that have given it so far.
        varies: Whether it has changed.
    """

    last: float
    candidates: frozenset[Candidate]
    varies: bool = False


class GroupNumbers:
    """What is known of all of them."""

    def __init__(self) -> None:
        self._settings: dict[Entry, _Setting] = {}

    def unexplained(self, numbers: Mapping[Entry, float], step: Explanations) -> str | None:
        """Returns which number is not what formulas say of the next step."""
        if numbers.keys() != self._settings.keys():
            return "optimizers have other numbers"
        for entry, value in numbers.items():
            known = self._settings[entry]
            changed = pattern(value) != pattern(known.last)
            if changed and not known.varies:
                return f"{entry[2]} of an optimizer changed for the first time"
            if known.varies and not step.near(value, known.candidates).candidates:
                return f"{entry[2]} of an optimizer follows no formula that gave it before"
        return None

    def passed(self, numbers: Mapping[Entry, float]) -> None:
        """Notes the numbers of a step that ran as a program."""
        for entry, value in numbers.items():
            self._settings[entry].last = value

    def follow(self, numbers: Mapping[Entry, float], step: Explanations) -> str | None:
        """Takes in the numbers before a recorded step; returns which was set by no formula."""
        unexplained: str | None = None
        alone = frozenset(each for each in step.recent(0) if each[1] < 0)
        for entry, value in numbers.items():
            known = self._settings.get(entry)
            if known is None:
                self._settings[entry] = _Setting(value, step.near(value, alone).candidates)
                continue
            if pattern(known.last) != pattern(value):
                near = step.near(value, known.candidates).candidates
                if near:
                    known.varies, known.candidates = True, near
                else:
                    unexplained = entry[2]
                    self._settings[entry] = _Setting(value, step.near(value, alone).candidates)
            self._settings[entry].last = value
        for entry in self._settings.keys() - numbers.keys():
            del self._settings[entry]
        return unexplained
