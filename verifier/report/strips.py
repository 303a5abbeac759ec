"""Where things lie on the strip that shows a chip's period: what its time counts as, and when snapshots were taken.

The page draws strips from these numbers, in percent of the period, so that they fit every width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_CHIPS = 60
"""Chips with a strip in one report: those about which there is most to doubt."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the period that counts as one category of the ledger; `left` and `width` in percent of the period."""

    category: str
    left: float
    width: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A snapshot within the period; `left` in percent of it."""

    status: str
    index: int
    left: float


@dataclass(frozen=True, slots=True)
class Strip:
    """One chip's period.

    Attributes:
        earlier: Snapshots that were taken before the period.
    """

    spans: Sequence[Span]
    marks: Sequence[Mark]
    earlier: int


def strips(report: Mapping[str, Any]) -> dict[str, Strip]:
    """Returns the strips of the chips that have most to doubt, by UEID; none of a chip without time in the ledger.

    Args:
        report: A report of this version.
    """
    ledger = {each["ueid"]: each for each in report["ledger"]["chips"]}
    chips = [chip for chip in report["chips"] if ledger.get(chip["ueid"], {"rows": ()})["rows"]]
    chips = sorted(chips, key=lambda chip: _doubt(chip, ledger[chip["ueid"]]), reverse=True)[:MOST_CHIPS]
    return {chip["ueid"]: _strip(chip["snapshots"], ledger[chip["ueid"]]["rows"]) for chip in chips}


def _doubt(chip: Mapping[str, Any], account: Mapping[str, Any]) -> tuple[int, float]:
    open_ones = sum(each["status"] != "explained" for each in chip["snapshots"])
    return open_ones, float(account["ms"]["unexplained"])


def _strip(snapshots: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> Strip:
    begin, end = rows[0]["begin_ms"], rows[-1]["end_ms"]
    whole = max(1, end - begin)
    spans: list[Span] = []
    for row in rows:
        left, width = 100 * (row["begin_ms"] - begin) / whole, 100 * (row["end_ms"] - row["begin_ms"]) / whole
        if spans and spans[-1].category == row["category"]:
            left, width = spans[-1].left, spans[-1].width + width
            spans.pop()
        spans.append(Span(row["category"], left, width))
    inside = [each for each in snapshots if begin <= each["time_ms"] <= end]
    marks = [Mark(each["status"], each["index"], 100 * (each["time_ms"] - begin) / whole) for each in inside]
    return Strip(spans, marks, len(snapshots) - len(inside))
