"""Repeats: segments whose rounding logs are due while the run goes on, as a beacon's later value names them.

A run with its logs on demand commits to results, and makes the logs only when someone asks. A Prover who committed to
what it did not compute could say then that the machine is gone, or that its repeat differs. So its draft may name a
beacon, a share of the segments and a delay. At the end of each segment the chip logs an event `segment` with the
running head. The first round of the beacon after the witness has that event decides whether the segment is due. If it
is, the Prover repeats it, and has the chip log a commitment to the logs within the delay. docs/recording.md says what
that is worth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weighbridge.core.digests import DIGEST_SIZE, record_digest
from weighbridge.core.errors import FormatError, UsageError

KEY = "repeats"
"""Key of the draft that holds the declaration."""
SEGMENT = "segment"
"""Name of the event at the end of a segment; its digest is the running head after it."""
LONGEST_S = 366 * 24 * 3600
"""The longest delay in seconds: what is asked for after a year is no repeat on the machine that still stands there."""
_COMMITMENT = re.compile(r"regenerated (0|[1-9][0-9]{0,15})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """What a draft declares.

    Attributes:
        beacon: Chain hash of the beacon (32 bytes).
        share: Probability that a segment is due, above 0 and at most 1.
        delay_s: Seconds from the round's time until the witness must have the commitment.
    """

    beacon: bytes
    share: float
    delay_s: int

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A field is none of its kind, or out of range.
        """
        if type(self.beacon) is not bytes or len(self.beacon) != DIGEST_SIZE:
            raise UsageError("a beacon is named by its chain hash, 32 bytes")
        if type(self.share) is not float or not (math.isfinite(self.share) and 0 < self.share <= 1):
            raise UsageError("the share of segments that are due is a number above 0 and at most 1")
        if type(self.delay_s) is not int or not 1 <= self.delay_s <= LONGEST_S:
            raise UsageError(f"the delay of a commitment is 1 to {LONGEST_S} whole seconds")

    def to_map(self) -> dict[str, Any]:
        """Returns what a draft says of it; inverse of `from_map`."""
        return {"beacon": self.beacon, "share": self.share, "delay_s": self.delay_s}

    def due(self, value: bytes, draft: bytes, segment: Heads) -> bool:
        """Tells whether a segment's logs are due.

        Args:
            value: Randomness of the beacon's first round after the witness had the segment's event.
            draft: Digest of the draft.
            segment: The running heads around the segment.
        """
        drawn = record_digest("segment-due/1", [value, draft, *segment])
        return int.from_bytes(drawn[:8]) < self.share * 2**64


Heads = tuple[bytes, bytes]
"""Running head before a segment, and after it (32 bytes each); of the first one, the draft's digest stands before."""


def from_map(said: object) -> Declared | None:
    """Returns what a draft declares under `KEY`, or None if that is missing.

    Raises:
        FormatError: It has another form.
    """
    if said is None:
        return None
    if not isinstance(said, dict) or set(said) != {"beacon", "share", "delay_s"}:
        raise FormatError("the draft's repeats are not a map of beacon, share and delay_s; ask for the run's draft")
    try:
        return Declared(**said)
    except UsageError as error:
        raise FormatError(f"the draft's repeats are malformed: {error.message}") from None


def commitment(draft: bytes, segment: Heads, logs: Sequence[bytes]) -> bytes:
    """Returns the digest that the chip logs for a segment that was repeated.

    Args:
        draft: Digest of the draft.
        segment: The running heads around the segment.
        logs: Digests of the encoded rounding logs of its steps, in order, as supplements name them.
    """
    return record_digest("regenerated/1", [draft, *segment, list(logs)])


def commitment_event(begin: int) -> str:
    """Returns the name of the event with the commitment to the logs of the segment that begins with a step."""
    return f"regenerated {begin}"


def committed_segment(name: str) -> int | None:
    """Returns the first step of the segment that an event commits to the logs of; None for other events.

    Law: of the name that `commitment_event` returns it is that step, and no other name has one.
    """
    match = _COMMITMENT.fullmatch(name)
    return None if match is None else int(match[1])


def is_prompt(name: str) -> bool:
    """Tells whether the time at which the witness has an event counts, so that a chip should report it at once."""
    return name == SEGMENT or committed_segment(name) is not None
