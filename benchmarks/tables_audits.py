"""The table of docs/benchmarks.md about audits."""

from __future__ import annotations

from benchmarks.page import Result, measured_on, table


def audits(result: Result) -> str:
    """What the digest of the work takes, beside replays without it."""
    rows = []
    for each in result["trainings"]:
        least = (f"{min(each['seconds'][name]):.1f}" for name in ("plain", "keyed", "elsewhere"))
        rows.append((each["steps"], *least, f"{each['keyed / plain']:.2f}"))
    head = ("steps", "plain s", "keyed s", "keyed, SSE2 s", "keyed / plain")
    return (
        f"{measured_on(result)} Before, {result['load_before']:.1f} other processes ran on {result['cores']} cores on "
        f"average. Minima of {result['rounds']} rounds.\n\n{table(head, rows)}"
    )
