"""Writes the tables of docs/redteam.md from the catalogue and from benchmarks/results/redteam.json.

`python -m benchmarks.redteam_page` replaces what stands between the marks of each table; a test compares the page with
catalogue and result file. What is not caught stands first; what is caught stands by areas.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from redteam.catalogue import AREAS, ROWS
from redteam.row import Row

from analysis.confidence import clopper_pearson
from analysis.detection import snapshot_probability
from analysis.domain import DetectionDomainError
from analysis.hypergeometric import least_drawn
from benchmarks import machine
from benchmarks.page import Result, table

PAGE = Path(__file__).parents[1] / "docs" / "redteam.md"
CONFIDENCE = 0.95
FLEET, WANTED = 1000, 0.95
RATE_PER_DAY, DAYS = 0.1, 30.0
"""The fleet of the column on inspections: chips, the probability to reach, snapshots a chip and day, and days."""


def inspected(row: Row, rate: float) -> str:
    """The share of the fleet that has to be drawn for an attack to be seen with probability 0.95."""
    if not row.chips:
        return "no draw needed"
    shown = rate * float(snapshot_probability(snapshot_rate_per_day=RATE_PER_DAY, days=DAYS))
    try:
        drawn = float(least_drawn(population=FLEET, marked=row.chips, shown=shown, wanted=WANTED))
    except DetectionDomainError:
        return "not reached"
    return f"{drawn / FLEET:.1%}"


def _share(gain: float) -> str:
    return f"{gain:.3f}" if gain > 0.001 else f"{gain:.0e}"


def cells(row: Row, result: Result) -> tuple[str, ...]:
    """What every table says of a row that was tried."""
    attempts = result.get("histories", result["seeds"])
    low, high = clopper_pearson(found=result["caught"], samples=attempts, confidence=CONFIDENCE)
    rate = result["caught"] / attempts
    digits = 3 if "histories" in result else 2
    seen = f"{rate:.{digits}f} [{float(low):.{digits}f}, {float(high):.{digits}f}] of {attempts}"
    return f"{median(result['cost']):.2f}", _share(median(result["gain"])), seen, inspected(row, rate) if rate else "-"


def rows_of(chosen: Sequence[Row], results: Result, *, caught: bool) -> str:
    """A table of rows."""
    lines: list[tuple[str, ...]] = []
    for row in chosen:
        result = results.get(row.name)
        cost, gain, seen, draws = cells(row, result) if result else ("", "", "not tried yet", "")
        own = (row.name, row.source, row.wants)
        finding = ", ".join(f"`{name}`" for name in row.expected)
        lines.append((*own, cost, gain, *((finding, seen, draws) if caught else (seen, row.note))))
    head = ("attack", "source", "the adversary wants to", "cost", "gain")
    return table((*head, *(("finding", "rate", "chips to draw") if caught else ("rate", "why"))), lines)


def by_area(results: Result) -> str:
    """A table of what is caught for each area, under its heading."""
    parts = []
    for area, rows in AREAS.items():
        chosen = [row for row in rows if row.expected and not row.simulated]
        parts.append(f"### {area}\n\n{rows_of(chosen, results, caught=True)}")
    return "\n\n".join(parts)


def prevented(results: Result) -> str:
    """The table of attacks that get the adversary nothing, so that there is nothing to find."""
    lines: list[tuple[str, ...]] = []
    for row in (row for row in ROWS if row.prevented):
        result, worked = results.get(row.name), "not tried yet"
        if result:
            gained = sum(gain > row.most for gain in result["gain"])
            low, high = clopper_pearson(found=gained, samples=result["seeds"], confidence=CONFIDENCE)
            worked = f"{gained / result['seeds']:.2f} [{float(low):.2f}, {float(high):.2f}] of {result['seeds']}"
        lines.append((row.name, row.source, row.wants, worked, row.note))
    return table(("attack", "source", "the adversary wants to", "rate of success", "why not"), lines)


def simulated(results: Result) -> str:
    """The table of rows in which fleets were played out."""
    lines: list[tuple[str, ...]] = []
    for row in (row for row in ROWS if row.simulated):
        result = results.get(row.name)
        cost, gain, seen, _ = cells(row, result) if result else ("", "", "not tried yet", "")
        formula = f"{result['formula']:.3f}" if result else ""
        lines.append((row.name, row.source, row.wants, cost, gain, seen, formula, row.note))
    head = ("run", "source", "the adversary wants to", "cost", "gain", "found in simulations", "formula", "how")
    return table(head, lines)


def controls(results: Result) -> str:
    """What the tolerance verifier says of the attacks that it was shown."""
    lines = []
    for row in ROWS:
        said = results.get(row.name, {}).get("control", [])
        if said and None not in said:
            result = results[row.name]
            lines.append((
                row.name, row.source, f"{sum(said)} of {len(said)}", f"{result['caught']} of {result['seeds']}",
            ))  # fmt: skip
    return table(("attack", "source", "accepted by the tolerance verifier", "caught here"), lines)


def notes() -> str:
    """What the gain of each row is, and what else there is to say of those that are caught."""
    lines = [f"- {row.name}: gain is {row.gains}. {row.note if row.expected else ''}".rstrip() for row in ROWS]
    return "\n".join(lines)


def render(page: str) -> str:
    """Returns the page with every table as catalogue and result file give it.

    Raises:
        ValueError: The page lacks the place of a table.
    """
    result = machine.load("redteam") or {}
    results = result.get("rows", {})
    shown = [row for row in ROWS if not row.simulated]
    parts = {
        "not caught": rows_of([row for row in shown if not row.expected and not row.prevented], results, caught=False),
        "caught": by_area(results),
        "prevented": prevented(results),
        "simulated": simulated(results),
        "control": controls(results),
        "notes": notes(),
    }
    for name, text in parts.items():
        place = re.compile(f"(<!-- begin {name} -->\n).*?(\n<!-- end {name} -->)", re.DOTALL)
        if not place.search(page):
            raise ValueError(f"the page has no place for {name!r}; add its begin and end marks")
        page = place.sub(lambda found, text=text: found[1] + text + found[2], page)  # type: ignore[misc]
    return page


def main() -> None:
    """Rewrites the page."""
    PAGE.write_text(render(PAGE.read_text()))
    print(f"wrote the tables of {PAGE}")


if __name__ == "__main__":
    main()
