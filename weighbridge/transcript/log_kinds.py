"""Which kind of rounding logs a transcript has: in full, or made on demand.

With logs in full each step record names the step's rounding log. With logs on demand it commits to all rounded outputs
instead, and the log is made when someone asks for it (`weighbridge.transcript.supplements`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

LogKind = Literal["full", "on-demand"]
KINDS: tuple[LogKind, ...] = ("full", "on-demand")
LOGS = "logs"
"""Key of the draft; one without it has its logs in full."""

ON_DEMAND = "on-demand"
_FORMATS = {None: 1, ON_DEMAND: 2}
"""Readers that know logs in full only refuse the second format by its number."""


def draft_format(draft: Mapping[str, Any]) -> int | None:
    """Returns the format of a draft by the kind of its logs; None if there is no such kind."""
    said = draft.get(LOGS)
    return _FORMATS.get(said) if said is None or isinstance(said, str) else None


def on_demand(draft: Mapping[str, Any]) -> bool:
    """Tells whether the rounding logs of a transcript with this draft are made on demand."""
    return draft.get(LOGS) == ON_DEMAND
