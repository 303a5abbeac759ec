"""How many segments of each transcript are replayed whole, or tested without a replay, beside the way to snapshots."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from weighbridge.errors import UsageError

_MOST = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentPolicy:
    """What an inspection replays whole. If all is left at nothing, segments are replayed up to their snapshots only.

    Attributes:
        random: Segments of each transcript drawn at random.
        largest: Segments of each transcript in which the weights changed most.
        memorisation: Segments of each transcript, those in which the weights changed most, to test for memorisation.
        records: Records of each transcript's data set, drawn at random, that the Prover is asked to open.
        commitment: Hex digest of secret criteria (`verifier.segments.Secret.commitment`); empty if there are none.
    """

    random: int = 0
    largest: int = 0
    memorisation: int = 0
    records: int = 0
    commitment: str = ""

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A number is out of range, or the commitment is no digest.
        """
        for name in ("random", "largest", "memorisation", "records"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= _MOST:
                raise UsageError(f"the number of {name} segments must be a whole number up to {_MOST}, not {value!r}")
        if not re.fullmatch(r"([0-9a-f]{64})?", self.commitment):
            raise UsageError("the commitment to secret criteria is a digest of 64 hexadecimal digits, or nothing")

    def __bool__(self) -> bool:
        """Whether anything is to be replayed whole."""
        return bool(self.random or self.largest or self.commitment)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data with every field."""
        return asdict(self)


NO_SEGMENTS = SegmentPolicy()
