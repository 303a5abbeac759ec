"""How an inspection draws its chips, as far as that is the operator's choice; it is part of the plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verifier.strata import Allocation, Attribute, check_attributes
from weighbridge.errors import UsageError

MAX_SECONDS = 366 * 24 * 3600.0
_MAX_SPEEDS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawPolicy:
    """How chips are drawn.

    Attributes:
        by: Attributes that divide the population into strata; none, for one stratum.
        allocation: How samples are allocated to strata.
        speeds: FLOPs a day of chips of some types, by type, where they differ from the plan's.
        cutoff_s: Seconds from the commitment to the cut-off; None for a second, and as long as asking chips for their
            heads may take.
        margin_s: Seconds from the cut-off to the beacon's round, for logging the closing; None for two, and more for
            large populations.
    """

    by: tuple[Attribute, ...] = ()
    allocation: Allocation = "proportional"
    speeds: Mapping[str, float] = field(default_factory=dict)
    cutoff_s: float | None = None
    margin_s: float | None = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A field is out of range.
        """
        check_attributes(self.by)
        if self.allocation not in ("proportional", "optimal"):
            raise UsageError(f"samples are allocated proportional or optimal, not {self.allocation!r:.40}")
        if self.speeds and "type" not in self.by:
            raise UsageError("chip types have speeds of their own, so strata must be by type; add it")
        if len(self.speeds) > _MAX_SPEEDS:
            raise UsageError(f"at most {_MAX_SPEEDS} chip types can have speeds of their own")
        for name, speed in self.speeds.items():
            if not (math.isfinite(speed) and speed > 0) or len(name) > 200 or not name.isprintable():
                raise UsageError(f"the FLOPs a day of chip type {name!r:.80} must be a positive finite number")
        for seconds in (self.cutoff_s, self.margin_s):
            if seconds is not None and not 0 <= seconds <= MAX_SECONDS:
                raise UsageError("cut-off and margin are between 0 seconds and a year")

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data with every field; inverse of `parse`."""
        return {
            "by": list(self.by),
            "allocation": self.allocation,
            "speeds": {name: float(speed) for name, speed in sorted(self.speeds.items())},
            "cutoff_s": self.cutoff_s,
            "margin_s": self.margin_s,
        }


def parse(value: Mapping[str, Any]) -> DrawPolicy:
    """Reads what `DrawPolicy.to_json` wrote.

    Raises:
        UsageError: A field is out of range.
    """
    return DrawPolicy(
        by=tuple(value["by"]),
        allocation=value["allocation"],
        speeds=value["speeds"],
        cutoff_s=value["cutoff_s"],
        margin_s=value["margin_s"],
    )
