"""Which kind of rounding logs a transcript has: in full, made on demand, or sketched.

With logs in full each step record names the step's rounding log. With logs on demand it commits to all rounded outputs
instead, and the log is made when someone asks for it (`weighbridge.transcript.supplements`). With sketches it does that
too, and names a sketch of each 16-bit output beside the log of the others (`weighbridge.numerics.sketches`); the log is
made where a sketch does not say enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

LogKind = Literal["full", "on-demand", "sketch"]
KINDS: tuple[LogKind, ...] = ("full", "on-demand", "sketch")
LOGS = "logs"
"""Key of the draft; one without it has its logs in full."""

ON_DEMAND = "on-demand"
SKETCH = "sketch"
_FORMATS = {None: 1, ON_DEMAND: 2, SKETCH: 3}
"""Readers that do not know a kind refuse its format by its number."""


def draft_format(draft: Mapping[str, Any]) -> int | None:
    """Returns the format of a draft by the kind of its logs; None if there is no such kind."""
    said = draft.get(LOGS)
    return _FORMATS.get(said) if said is None or isinstance(said, str) else None


def on_demand(draft: Mapping[str, Any]) -> bool:
    """Tells whether the rounding logs of a transcript with this draft, or what sketches do not say, are made on demand.

    Its step records commit to the digest of all rounded outputs then.
    """
    return draft.get(LOGS) in (ON_DEMAND, SKETCH)


def sketched(draft: Mapping[str, Any]) -> bool:
    """Tells whether step records of a transcript with this draft name sketches."""
    return draft.get(LOGS) == SKETCH
