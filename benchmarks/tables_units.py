"""The tables of docs/benchmarks.md about recordings and replays on models of matrix units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.page import Result, measured_on, table

LONG = "long"
"""The subject whose sums leave bounds that were measured elsewhere."""


def unit_replays(result: Result) -> str:
    """What was recorded on which unit and replayed on which: by subject, and by pair of units."""
    rows: list[Sequence[object]] = []
    for name, subject in result["subjects"].items():
        recordings, pairs = subject["recordings"].values(), subject["pairs"]
        rounded, logged, size = (sum(r[key] for r in recordings) for key in ("rounded", "logged", "log_bytes"))
        matched = [pair for pair in pairs if pair["verdict"] == "match"]
        followed = [pair["followed"] for pair in matched]
        rows.append((
            name, f"{len(matched)} of {len(pairs)}", f"{rounded // len(recordings):,}",
            f"{sum(pair['narrow'] for pair in matched) // len(matched):,}", f"{logged // len(recordings):,}",
            f"{8 * size / rounded:.3f}", f"{min(followed)} to {max(followed)}",
            f"{sum(pair['terms'] for pair in pairs) / 1e6:,.0f}",
        ))  # fmt: skip
    head = (
        "subject", "replays that matched", "roundings", "under calibrated bounds", "contested", "log bits a rounding",
        "really different", "million products",
    )  # fmt: skip
    honest = [pair for name, subject in result["subjects"].items() if name != LONG for pair in subject["pairs"]]
    total = sum(pair["rounded"] for pair in honest)
    mismatches = sum(pair["verdict"] != "match" for pair in honest)
    parts = [
        f"{measured_on(result)} Seed {result['seed']}. Without `{LONG}`: {len(honest)} replays, {total:,} roundings, "
        f"{mismatches} mismatches.",
        table(head, rows),
        "Roundings that would have come out otherwise without the log, of all subjects but "
        f"`{LONG}`; recorded on (rows), replayed on (columns):",
        _matrix(honest, lambda pairs: f"{sum(pair['followed'] for pair in pairs):,}"),
    ]
    if LONG in result["subjects"]:
        parts += [f"Verdicts of `{LONG}`:", _matrix(result["subjects"][LONG]["pairs"], _verdict)]
    return "\n\n".join(parts)


def _verdict(pairs: Sequence[dict[str, Any]]) -> str:
    if not pairs:
        return "-"
    (pair,) = pairs
    return f"{pair['verdict']}, {pair['followed']}" if pair["verdict"] == "match" else str(pair["verdict"])


def _matrix(pairs: Sequence[dict[str, Any]], cell: Callable[[Sequence[dict[str, Any]]], str]) -> str:
    units = list(dict.fromkeys(pair["recorded"] for pair in pairs))
    rows = [
        [one, *(cell([p for p in pairs if (p["recorded"], p["replayed"]) == (one, other)]) for other in units)]
        for one in units
    ]
    return table(["recorded on", *units], rows)
