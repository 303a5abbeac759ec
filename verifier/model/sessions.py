"""The sessions of a chip: from the moment a workload was attached to the moment it left, and what the chip did then."""

from __future__ import annotations

from verifier.model.facts import LogFacts
from weighbridge.attest.tokens import Token
from weighbridge.core.errors import WeighbridgeError

ATTACHED, DETACHED = "workload-attached", "workload-detached"
"""The chip's own events."""


def tokens_of(log: LogFacts) -> list[Token]:
    """Returns the entries that verify, and the head after them."""
    found = [entry.verified.token for entry in log.entries if not isinstance(entry.verified, WeighbridgeError)]
    return found if isinstance(log.head, WeighbridgeError) else [*found, log.head.token]
