"""The sessions of a chip: from the moment a workload was attached to the moment it left, and what the chip did then."""

from __future__ import annotations

from collections.abc import Sequence

from verifier.model.facts import LogFacts
from weighbridge.attest.tokens import Token
from weighbridge.attest.work import NONE, Work
from weighbridge.core.errors import WeighbridgeError

ATTACHED, DETACHED = "workload-attached", "workload-detached"
"""The chip's own events."""
DRAFT = "manifest-draft"
"""The workload's event that carries the digest of a run's draft."""


def begins(token: Token) -> bool:
    """Whether what a workload does counts from this entry on."""
    return token.kind == "boot" or (token.kind == "event" and token.body["name"] == ATTACHED)


def since_attached(entries: Sequence[Token]) -> Work | None:
    """Returns what the workload of the last of some entries has done by then; None if that is not said.

    Args:
        entries: Of one log, in order.
    """
    last = entries[-1]
    for token in reversed(entries):
        if token.boot_count != last.boot_count or token.work is None or last.work is None:
            return None
        if begins(token):
            return last.work - token.work
    return None


def work_of(log: LogFacts) -> Work:
    """Returns what a chip has done since its first entry that says so, as far as its log and its head tell."""
    said = [token.work for token in tokens_of(log) if token.work is not None]
    return said[-1] - said[0] if said else NONE


def tokens_of(log: LogFacts) -> list[Token]:
    """Returns the entries that verify, and the head after them."""
    found = [entry.verified.token for entry in log.entries if not isinstance(entry.verified, WeighbridgeError)]
    return found if isinstance(log.head, WeighbridgeError) else [*found, log.head.token]
