"""The ledger of all sampled chips together, and what it says about chips that were not sampled.

The extrapolation is a statement about numbers of chips: at most m of the C chips in the registry have more than the
tolerated share of unexplained hours, with the stated confidence, given that k of the s chips drawn at random have.
Chips that were drawn for another reason than chance count for themselves only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from analysis.confidence import clopper_pearson, hypergeometric_bounds
from verifier.model.facts import LogFacts, SnapshotFacts, TranscriptFacts, by_chip
from verifier.model.peak_flops import peak_of
from verifier.report.ledger import AS_AGREED, CATEGORIES, ChipLedger, LedgerPolicy, account

_DAY_S = 86_400

MEANING = (
    "unexplained_flops bounds undeclared work on a chip if its counters and interrupts are believed; remainder_flops "
    "bounds it if nothing is believed but the transcripts. The counter counts every number that is computed, "
    "as the tapes do; idle time that rests on interrupts is idle but for the chance that none fell into hidden work."
)


def of(
    logs: Sequence[LogFacts],
    snapshots: Sequence[SnapshotFacts],
    transcripts: Sequence[TranscriptFacts],
    *,
    period_days: float,
    peak: float,
    policy: LedgerPolicy = AS_AGREED,
    totals: dict[str, int] | None = None,
) -> list[ChipLedger]:
    """Accounts for every sampled chip.

    Args:
        logs: The chips that were drawn.
        snapshots: All snapshots, once they are judged.
        transcripts: Those that explain snapshots.
        period_days: Length of the period, which ends for each chip when its log was read.
        peak: FLOPs a day of a chip whose type the catalogue does not have.
        policy: What the parties agreed on.
        totals: FLOPs of whole transcripts, by identifier.
    """
    own = by_chip(snapshots)
    return [
        account(
            log,
            own.get(log.chip.ueid, ()),
            transcripts,
            period_days=period_days,
            peak=_DAY_S * found if (found := peak_of(log.chip.chip_type)) is not None else peak,
            policy=policy,
            totals=totals,
        )
        for log in logs
    ]


def summary(
    chips: Sequence[ChipLedger],
    *,
    population: int,
    peak: float,
    period_days: float,
    policy: LedgerPolicy = AS_AGREED,
    certain: Collection[bytes] = (),
) -> dict[str, Any]:
    """Returns the ledger as JSON-compatible data.

    Args:
        chips: The account of each sampled chip.
        population: Chips in the registry (C).
        peak: FLOPs a day of a chip that was not sampled.
        period_days: Length of the period.
        policy: What the parties agreed on.
        certain: UEIDs of chips that were drawn with certainty.
    """
    return {
        "period_days": period_days,
        "population": population,
        "peak_flops_per_day": peak,
        "certain": sorted(ueid.hex() for ueid in certain),
        "policy": policy.to_json(),
        "meaning": MEANING,
        "chips": [chip.to_json() for chip in chips],
        "ms": {category: sum(chip.ms(category) for chip in chips) for category in CATEGORIES},
        "explained_flops": math.fsum(chip.explained_flops for chip in chips),
        "unexplained_flops": math.fsum(chip.unexplained_flops for chip in chips),
        "remainder_flops": math.fsum(chip.remainder_flops for chip in chips),
        "fleet": _fleet(chips, population, peak * period_days, policy, certain),
    }


def _fleet(
    chips: Sequence[ChipLedger], population: int, capacity: float, policy: LedgerPolicy, certain: Collection[bytes]
) -> dict[str, Any] | None:
    """Bounds the unexplained work on all chips; None if no chip was drawn at random."""
    drawn = [chip for chip in chips if chip.ueid not in certain]
    asked = population - (len(chips) - len(drawn))
    if not drawn or asked < len(drawn):
        return None
    # At exactly the tolerated share the other chips' bound below still covers it.
    over = sum(chip.ms("unexplained") > policy.tolerated_share * chip.period_ms for chip in drawn)
    both_sides = 2 * policy.confidence - 1
    _, most = hypergeometric_bounds(found=over, samples=len(drawn), chips=asked, confidence=both_sides)
    _, share = clopper_pearson(found=over, samples=len(drawn), confidence=both_sides)
    unsampled, beyond = asked - len(drawn), int(most) - over
    sampled = math.fsum(chip.unexplained_flops for chip in chips)
    rest = capacity * (beyond + policy.tolerated_share * (unsampled - beyond))
    return {
        "sampled_at_random": len(drawn),
        "not_sampled": unsampled,
        "over_tolerated_share": over,
        "chips_over_at_most": int(most),
        "share_over_at_most": float(share),
        "confidence": policy.confidence,
        "unexplained_flops_at_most": sampled + rest,
        "meaning": (
            f"with confidence {policy.confidence:g}, at most {int(most)} of {asked} chips (hypergeometric; a share of "
            f"at most {float(share):.4g} by Clopper and Pearson) have more than {policy.tolerated_share:g} of their "
            "hours unexplained; the bound in FLOPs takes these as wholly unexplained and the others at that share. It "
            "takes work beside transcripts, which counters would show, to be absent on chips that were not sampled."
        ),
    }
