"""How much an inspection really looked at: what was replayed, the chip-time that evidence covers, who stayed silent.

p says what a draw is worth. It does not say that anything was checked: chips that ran nothing, or whose snapshots
cannot be replayed, leave nothing to check. So a report says beside p how much was observed, and one in which nothing
was replayed is neither clean nor verified. Nor is one with a rule that the facts do not decide. Everything here follows
from other parts of a report, so that `verifier.report.consistency` can compute it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from verifier.model.facts import CONTRADICTED

Verdict = Literal["clean", "findings", "unchecked"]

OBSERVED = (
    "chip-time of the period, on chips that count as verified, that a replayed transcript explains or that counters "
    "and interrupts show to be idle; the rest of the period was not observed"
)
NOTHING_DUE = "nothing was due, nothing was checked"


def verdict(*, violations: int, warnings: int, undecided: int, replayed: bool) -> Verdict:
    """Returns a report's verdict: `unchecked` if nothing was found because nothing was replayed.

    Args:
        violations: Findings of this severity, by the policy.
        warnings: The same.
        undecided: Rules that could not be decided; a policy may call that a note, and the report is not clean.
        replayed: Whether anything was.
    """
    if violations or warnings or undecided:
        return "findings"
    return "clean" if replayed else "unchecked"


def undecided(report: Mapping[str, Any]) -> list[str]:
    """Returns the rules that could not be decided by a report's word, which may have any form."""
    section = report.get("rules")
    rules = section.get("rules") if isinstance(section, Mapping) else None
    each_rule = [each for each in rules if isinstance(each, Mapping)] if isinstance(rules, list) else []
    return [str(each.get("id")) for each in each_rule if each.get("outcome") == "undecided"]


def replayed_anything(chips: Iterable[Mapping[str, Any]], steps: Iterable[Mapping[str, Any]]) -> bool:
    """Tells whether a report rests on any replay.

    Args:
        chips: The report's `chips`.
        steps: The report's `replayed`: how many steps of each transcript were.
    """
    taken = any(snapshot["replay"] is not None for chip in chips for snapshot in chip["snapshots"])
    return taken or any(each["replayed"] > 0 for each in steps)


def nothing_checked(report: Mapping[str, Any]) -> str:
    """Returns the sentence that a report in which nothing was replayed says; empty for every other report."""
    if replayed_anything(report["chips"], report["replayed"]):
        return ""
    due = report["counts"]["snapshots"]
    if not due:
        return NOTHING_DUE
    return f"{due} snapshot{' was' if due == 1 else 's were'} due and none could be replayed: nothing was checked"


def observed(ledger: Mapping[str, Any], verified: Collection[str], *, population: int) -> dict[str, Any]:
    """Returns the chip-time that the evidence of verified chips covers, in milliseconds, and of how much.

    Args:
        ledger: The report's section.
        verified: UEIDs, in hexadecimal, of the chips that count as verified.
        population: Chips in the registry.
    """
    chips: Sequence[Mapping[str, Any]] = ledger["chips"]
    parts = {
        f"{name}_ms": sum(chip["ms"][name] for chip in chips if chip["ueid"] in verified)
        for name in ("explained", "idle")
    }
    period = round(ledger["period_days"] * 86_400_000)
    return {
        **parts,
        "observed_ms": sum(parts.values()),
        "drawn_ms": period * len(chips),
        "fleet_ms": period * population,
        "meaning": OBSERVED,
    }


def found_against(chip: Mapping[str, Any]) -> bool:
    """Tells whether a violation was seen on a chip: that is no silence, and hides nothing."""
    return any(each["status"] in CONTRADICTED for each in chip["snapshots"])


def silence(chips: Iterable[Mapping[str, Any]], certain: Collection[str]) -> dict[str, int]:
    """Returns how many chips stayed silent before the cut-off, and what became of those drawn at random.

    The former were drawn with certainty and are no part of the random sample. Of the latter some may not have verified,
    and the Prover knew then that they were drawn: p takes them for chips that it chose. A chip on which a violation was
    seen is none of these.

    Args:
        chips: The report's `chips`.
        certain: UEIDs, in hexadecimal, of those drawn with certainty.
    """
    doubtful = [chip for chip in chips if chip["verified"] is not True]
    seen = sum(found_against(chip) for chip in doubtful)
    return {
        "silent_before_cutoff": len(certain),
        "found_against": seen,
        "unverified_after_draw": sum(chip["ueid"] not in certain and not found_against(chip) for chip in doubtful),
    }
