"""The sessions of a chip: from the moment a workload was attached to the moment it left, and what the chip did then."""

from __future__ import annotations

from collections.abc import Sequence

from verifier.model.facts import LogFacts
from weighbridge.attest.tokens import Token, counters, event_name, is_confidential
from weighbridge.attest.work import NONE, Work
from weighbridge.core.errors import WeighbridgeError

ATTACHED, DETACHED = "workload-attached", "workload-detached"
"""The chip's own events."""
DRAFT = "manifest-draft"
"""The workload's event that carries the digest of a run's draft."""


def begins(token: Token) -> bool:
    """Whether what a workload does counts from this entry on."""
    return token.kind == "boot" or event_name(token) == ATTACHED


def since_attached(entries: Sequence[Token]) -> Work | None:
    """Returns what the workload of the last of some entries has done by then; None if that is not said, or hidden.

    Args:
        entries: Of one log, in order.
    """
    last = entries[-1]
    for token in reversed(entries):
        before, after = counters(token), counters(last)
        if token.boot_count != last.boot_count or before is None or after is None:
            return None
        if begins(token):
            return after - before
    return None


def work_of(log: LogFacts) -> Work:
    """Returns what a chip has done since its first entry that says so, as far as its log and its head show it."""
    said = [work for token in tokens_of(log) if (work := counters(token)) is not None]
    return said[-1] - said[0] if said else NONE


def confidential_boots(log: LogFacts) -> set[int]:
    """Returns the numbers of the boots whose entries say that they are confidential."""
    return {token.boot_count for token in tokens_of(log) if token.kind == "boot" and is_confidential(token)}


def tokens_of(log: LogFacts) -> list[Token]:
    """Returns the entries that verify, and the head after them."""
    found = [entry.verified.token for entry in log.entries if not isinstance(entry.verified, WeighbridgeError)]
    return found if isinstance(log.head, WeighbridgeError) else [*found, log.head.token]
