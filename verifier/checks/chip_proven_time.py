"""Does enough of a chip's period lie between two contacts of one boot?

What lies outside may have been spent with a slow clock, on which no interrupt comes (`verifier.checks.chip_clock`). An
honest chip that was switched off looks the same. So this is a demand that parties agree on, and chips meet it by
reporting to the Verifier's witness now and then.
"""

from __future__ import annotations

from verifier.checks.chip_clock import proven_ms
from verifier.model.facts import LogFacts
from verifier.model.reference_values import ChipLimits
from weighbridge.core.errors import Finding, WeighbridgeError

DAY_MS = 86_400_000


def check(log: LogFacts, period_days: float, limits: ChipLimits) -> list[Finding]:
    """Compares the share of the period that contacts prove with the least that the Verifier asks for.

    Args:
        log: The chip's log. One that could not be read has findings of its own.
        period_days: Length of the monitoring period, in days of the chip's clock.
        limits: The Verifier's.
    """
    if limits.unproven_share >= 1 or isinstance(log.head, WeighbridgeError):
        return []
    proven = proven_ms(log, round(period_days * DAY_MS)) / DAY_MS
    if proven >= (1 - limits.unproven_share) * period_days:
        return []
    return [
        Finding(
            id="chip.time.unproven",
            message="too little of the period lies between two contacts of one boot: its clock may have been slow in "
            "the rest, so that no interrupt came",
            expected=f"at least {(1 - limits.unproven_share) * period_days:.3g} of {period_days:.3g} days",
            found=f"{proven:.3g} days",
            subject=f"chip {log.chip.ueid.hex()}",
            severity="warning",
        )
    ]
