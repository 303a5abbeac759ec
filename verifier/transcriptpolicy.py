"""How grave it is what transcripts leave open: where a run began, and who chose the order of its data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from weighbridge.errors import Severity, UsageError

Weight = Literal[Severity, "accepted"]
"""The severity of a finding, or that there is none."""

WEIGHTS = (*get_args(Severity), "accepted")


@dataclass(frozen=True, kw_only=True, slots=True)
class TranscriptPolicy:
    """What follows from what a transcript leaves open.

    Attributes:
        origin: A run began from content that no recorded program made, and names no parent
            (`transcript.origin.undeclared`).
        order: The Prover chose the order of the data, or the seed of W_0, freely (`data.order.chosen`).
    """

    origin: Weight = "warning"
    order: Weight = "accepted"

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A field is no weight.
        """
        for field in fields(self):
            if getattr(self, field.name) not in WEIGHTS:
                raise UsageError(f"{field.name} of a transcript policy is one of {', '.join(WEIGHTS)}")

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data with every field."""
        return asdict(self)


TRANSCRIPTS_AS_DESIGNED = TranscriptPolicy()
