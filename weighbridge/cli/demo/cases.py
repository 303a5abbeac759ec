"""What runs in the demo, and what the inspection has to find about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CLOCK_SPEED = 43_200.0
"""Chip seconds per second: a minute of the demo is a month on the chips' clocks."""
RATE_PER_DAY = 0.1
PERIOD_DAYS = 30.0
CHIP_FLOPS_PER_DAY = 8.64e19
"""With the rate and the period, the numbers of Shavit's table 1 (an H100 at 10^15 FLOP/s)."""
TERMS = {
    "flops": CHIP_FLOPS_PER_DAY * PERIOD_DAYS,
    "chip_flops": CHIP_FLOPS_PER_DAY,
    "days": PERIOD_DAYS,
    "rate": RATE_PER_DAY,
}
"""What is agreed on about the sealed inspection: what the open one was planned with."""


@dataclass(frozen=True, slots=True)
class Case:
    """One training job, and what the inspection has to find about it.

    Attributes:
        name: Of the job, of its chip's site and of its transcript's directory.
        recipe: Recipe to train.
        mode: `honest`, `hidden` or `altered`.
        steps: Updates.
        finding: What has to be found; None for nothing.
        words: For the table.
        checkpoint_every: Steps between checkpoints; a replay starts at the nearest.
        ranks: Processes that train together, each on a chip of its own.
    """

    name: str
    recipe: str
    mode: str
    steps: int
    finding: str | None
    words: str
    checkpoint_every: int = 5
    ranks: int = 1

    @property
    def sites(self) -> list[str]:
        """Names of its chips, by rank."""
        return [self.name] if self.ranks == 1 else [f"{self.name}-{rank}" for rank in range(self.ranks)]


CASES = (
    Case("gpt2", "gpt2", "honest", 30, None, "declared"),
    Case("digits", "digits", "honest", 60, None, "declared"),
    Case("sharded", "sharded", "honest", 8, None, "declared, on 4 ranks", ranks=4),
    Case("altered", "digits", "altered", 40, "replay.mismatch", "declared, trained on other data", 50),
    Case("hidden", "gpt2", "hidden", 60, "snapshot.unexplained", "undeclared run"),
)
IDLE = ("idle-1", "idle-2")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the inspection said about one chip.

    Attributes:
        name: The chip's site.
        words: What ran there.
        snapshots: How many snapshots its log holds.
        explained: How many of them a replay explained.
        found: Findings, as text.
        as_said: Whether that is what the demo promises.
    """

    name: str
    words: str
    snapshots: int
    explained: int
    found: str
    as_said: bool


def judge(report: Mapping[str, Any], sites: Mapping[str, str], cases: Sequence[Case]) -> list[Outcome]:
    """Says of every chip whether the report is what the demo promises.

    Args:
        report: Of the inspection.
        sites: Hex identity of each chip to the name of what ran there.
        cases: What ran; other chips must have been idle.
    """
    by_site = {site: case for case in cases for site in case.sites}
    outcomes = []
    for chip in report["chips"]:
        name = sites[chip["ueid"]]
        case = by_site.get(name)
        own = [f for f in report["findings"] if f["severity"] == "violation" and about(f, chip)]
        statuses = [snapshot["status"] for snapshot in chip["snapshots"]]
        if case is None:
            as_said = chip["verified"] and not own
        elif case.finding is None:
            as_said = chip["verified"] and not own and bool(statuses)
        else:
            as_said = not chip["verified"] and bool(statuses) and case.finding in {f["id"] for f in own}
        words = case.words if case else "idle"
        found = "\n".join(dict.fromkeys(_words(f) for f in sorted(own, key=_place))) or "nothing"
        outcomes.append(Outcome(name, words, len(statuses), statuses.count("explained"), found, as_said))
    return sorted(outcomes, key=lambda outcome: list(sites.values()).index(outcome.name))


def about(finding: Mapping[str, Any], chip: Mapping[str, Any]) -> bool:
    """Tells whether a finding is about a chip or about a transcript that is to explain one of its snapshots."""
    named = {snapshot["transcript"] for snapshot in chip["snapshots"]} - {None}
    return any(each in str(finding["subject"]) for each in {chip["ueid"], *named})


def _place(finding: Mapping[str, Any]) -> tuple[int, int]:
    """Orders findings by where they happened; those without a position come last."""
    evidence = finding["evidence"]
    return int(evidence.get("step", 1 << 62)), int(evidence.get("op", 0))


def _words(finding: Mapping[str, Any]) -> str:
    evidence = finding["evidence"]
    if finding["id"] == "replay.mismatch" and "step" in evidence:
        return f"{finding['id']}: step {evidence['step']}, operation {evidence['op']} ({evidence.get('operation', '')})"
    return str(finding["id"])
