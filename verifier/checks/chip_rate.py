"""Does the chip take snapshots as often as the plan, and so p, assumes?"""

from __future__ import annotations

from verifier.model.facts import LogFacts, Plan, number
from weighbridge.core.errors import Finding, WeighbridgeError


def check(log: LogFacts, plan: Plan) -> list[Finding]:
    """Compares the rate in every boot entry with the planned one; reports the lowest that is too low."""
    tokens = [entry.verified.token for entry in log.entries if not isinstance(entry.verified, WeighbridgeError)]
    rates = [number(token, "rate_milli") / 1000 for token in tokens if token.kind == "boot"]
    if not rates or min(rates) >= plan.snapshot_rate_per_day - 0.0005:  # the boot entry has three decimals
        return []
    return [
        Finding(
            id="chip.rate.low",
            message="the firmware takes fewer snapshots than the plan assumes, which overstates p; plan with its rate",
            expected=f"at least {plan.snapshot_rate_per_day:g} snapshots a day",
            found=f"{min(rates):g} a day",
            subject=f"chip {log.chip.ueid.hex()}",
            severity="warning",
        )
    ]
