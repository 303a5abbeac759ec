"""What chips' counters show that no transcript explains, chip by chip and party by party, and what stays unasked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from verifier.checks.unexplained_work import ChipWork, parties, threshold
from verifier.model.facts import Plan

MEANING = (
    "counted: FLOPs by a chip's own counters, over its whole log. at_most: the same, and unknown work at its peak. "
    "explained: FLOPs of the transcripts of its snapshots, with what set-up, recording, evaluation and recorded "
    "resumptions may take. unexplained: the rest. Below from_flops, on one chip and on all chips of a party together, "
    "it is stated here and not a finding."
)


def section(chips: Sequence[ChipWork], plan: Plan, least: float | None = None) -> dict[str, Any]:
    """Returns the section as JSON-compatible data; work in FLOPs.

    Args:
        chips: What each chip did.
        plan: The inspection's.
        least: The smallest H that one of its rules needs.
    """
    from_ = threshold(plan, least)
    rows: list[dict[str, Any]] = [
        {
            "ueid": each.chip.ueid.hex(),
            "sessions": each.sessions,
            "counted_flops": each.done.flops,
            "at_most_flops": each.at_most,
            "explained_flops": each.explained,
            "unexplained_flops": each.unexplained,
        }
        for each in chips
    ]
    groups = [
        {
            "party": name,
            "chips": sorted(each.chip.ueid.hex() for each in group),
            "unexplained_flops": math.fsum(each.unexplained for each in group),
        }
        for name, group in parties(chips)
    ]
    return {"from_flops": from_, "chips": rows, "parties": groups, **totals(rows, from_), "meaning": MEANING}


def totals(chips: Sequence[Mapping[str, Any]], from_flops: float) -> dict[str, float]:
    """Returns the sums over all chips.

    Args:
        chips: The section's rows.
        from_flops: From which unexplained work on is asked about.
    """
    unexplained = [float(each["unexplained_flops"]) for each in chips]
    return {
        "unexplained_flops": math.fsum(unexplained),
        "below_flops": math.fsum(each for each in unexplained if each < from_flops),
    }
