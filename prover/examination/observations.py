"""What an examined script met: takes it down by line, so that a loop is not told of once for every step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from prover.capture.user_line import text_of, user_place
from weighbridge.core.errors import StateChangedError, WeighbridgeError

_MOST = 200
"""Obstacles that are kept."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that would end a recording.

    Attributes:
        id: Of the error that would end it.
        what: What is wrong.
        remedy: What to do about it.
        line: `file:number: text` of the program; empty if unknown.
        module: The module that ran, if one did.
        operation: The operation, if it is one.
    """

    id: str
    what: str
    remedy: str
    line: str = ""
    module: str | None = None
    operation: str | None = None


@dataclass(slots=True)
class Observations:
    """Takes down what a script meets.

    Attributes:
        obstacles: Each obstacle with the steps in which it was met.
        devices: By device whose arithmetic was tested: what is wrong with it, None if it conforms.
        arrays: Names of state of which the script has had an array that it may write to.
        entered: (Step, name) of tensors that are results of refused operations.
        notes: What else is worth knowing: (what, line).
        faithful: Whether the short recording is what a real one would be, up to the results of refused operations.
    """

    obstacles: dict[Obstacle, list[int]] = field(default_factory=dict)
    devices: dict[str, str | None] = field(default_factory=dict)
    arrays: set[str] = field(default_factory=set)
    entered: set[tuple[int, str]] = field(default_factory=set)
    notes: dict[tuple[str, str], None] = field(default_factory=dict)
    faithful: bool = True

    def met(self, error: WeighbridgeError, step: int) -> None:
        """Takes down an error that would end the recording.

        Args:
            error: The error.
            step: The step in which it came.
        """
        text, line = error.message, error.details.get("line")
        if line is not None and text.endswith("]"):
            text = text.rpartition(" [")[0]
        what, _, remedy = text.partition("; ")
        if isinstance(error, StateChangedError):
            what, _, remedy = text.partition(". ") if ". " in text else (what, "", remedy)
            if error.details.get("tensor", "") in self.arrays:
                return  # a recording would have refused that the array is written to
        elif line is None:
            place = user_place()
            line = "" if place is None else text_of(place)
        operation = error.details.get("operation")
        if operation is not None and operation not in what:
            what = f"{operation}: {what}"
        self.add(Obstacle(error.reason, what, remedy, line or "", error.details.get("module"), operation), step)

    def add(self, obstacle: Obstacle, step: int) -> None:
        """Takes down an obstacle."""
        if obstacle in self.obstacles or len(self.obstacles) < _MOST:
            steps = self.obstacles.setdefault(obstacle, [])
            if step not in steps:
                steps.append(step)

    def to_json(self) -> dict[str, Any]:
        """Returns all of it as JSON-compatible values."""
        return {
            "obstacles": [{**asdict(obstacle), "steps": steps} for obstacle, steps in self.obstacles.items()],
            "devices": self.devices,
            "notes": [list(note) for note in self.notes],
            "faithful": self.faithful,
        }
