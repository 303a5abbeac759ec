"""Writes the tables of docs/benchmarks.md and docs/performance.md from the result files.

`python -m benchmarks.tables` replaces what stands between `<!-- begin NAME -->` and `<!-- end NAME -->`, so that no
figure in a page is typed by hand; a test compares the pages with the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import (
    machine,
    tables_arm,
    tables_audits,
    tables_chips,
    tables_collectives,
    tables_disputes,
    tables_inspection,
    tables_logs,
    tables_parts,
    tables_replays,
    tables_sketches,
    tables_units,
)
from benchmarks.page import Result

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"

TABLES: dict[str, Callable[[Result], str]] = {
    "logs": tables_logs.logs,
    "chosen_bits": tables_logs.chosen_bits,
    "logs_on_demand": tables_logs.logs_on_demand,
    "sketches": tables_sketches.sketches,
    "sketched_logs": tables_sketches.sketched_logs,
    "entries": tables_logs.entries,
    "roundings": tables_logs.roundings,
    "steps": tables_replays.steps,
    "differences": tables_replays.differences,
    "settings": tables_replays.settings,
    "soak_checkpoints": tables_replays.checkpoints,
    "soak": tables_replays.soak,
    "arm": tables_arm.arm,
    "unit_replays": tables_units.unit_replays,
    "unit_products": tables_units.unit_products,
    "truncating": tables_units.truncating,
    "resume": tables_replays.resume,
    "resume-wide": tables_replays.resume,
    "soak_chip": tables_chips.chip_power,
    "chip": tables_chips.chip,
    "recording_work": tables_chips.recording_work,
    "chip_crashes": tables_chips.chip_crashes,
    "honest": tables_inspection.honest,
    "soak_verifier_kills": tables_inspection.verifier_kills,
    "soak_flood": tables_inspection.flood,
    "fleet": tables_chips.fleet,
    "simulator": tables_chips.simulator,
    "registry": tables_chips.registry,
    "draw": tables_chips.draw,
    "fuzz": tables_replays.fuzz,
    "export_size": tables_replays.export_size,
    "cells": tables_replays.cells,
    "collectives": tables_collectives.collectives,
    "disputes": tables_disputes.disputes,
    "narrowed_disputes": tables_disputes.narrowed,
    "memory_disputes": tables_disputes.memory,
    "courses": tables_disputes.courses,
    "sealed_disputes": tables_disputes.sealed,
    "audits": tables_audits.audits,
    "memorisation": tables_replays.memorisation,
    "inspection": tables_inspection.inspection,
    "inspection_small": tables_inspection.inspection,
    "verification_cost": tables_inspection.verification_cost,
}
"""By name of the result file and of the place in the page."""

PERFORMANCE = PAGE.with_name("performance.md")
PARTS: dict[str, Callable[[Result], str]] = {
    "parts": tables_parts.parts, "programs": tables_parts.programs, "compiled": tables_parts.compiled,
    "peer": tables_parts.peer,
}  # fmt: skip
"""The tables of docs/performance.md."""


def render(page: str, tables: Mapping[str, Callable[[Result], str]] = TABLES) -> str:
    """Returns a page with every table as the result files give it.

    Raises:
        ValueError: The page lacks the place of a table.
    """
    for name, make in tables.items():
        result = machine.load(name)
        text = make(result) if result else f"Not measured yet: `python -m benchmarks.{module(name)}`."
        place = re.compile(f"(<!-- begin {name} -->\n).*?(\n<!-- end {name} -->)", re.DOTALL)
        if not place.search(page):
            raise ValueError(f"the page has no place for the table {name!r}; add its begin and end marks")
        page = place.sub(lambda found, text=text: found[1] + text + found[2], page)  # type: ignore[misc]
    return page


def module(name: str) -> str:
    """Returns the script that makes a result file."""
    other = {"arm": "arm", "sketches": "sketches", "resume": "soak_resume", "fuzz": "soak_fuzz"}
    other |= {"resume-wide": "soak_resume --kills 24 --width 40000"}
    other |= {"chip_crashes": "soak_chip_crashes", "honest": "soak_honest", "inspection_small": "bench_inspection"}
    return other.get(name, name if name.startswith(("soak", "export")) else f"bench_{name}")


def main() -> None:
    """Rewrites the pages."""
    for page, tables in ((PAGE, TABLES), (PERFORMANCE, PARTS)):
        page.write_text(render(page.read_text(), tables))
        print(f"wrote the tables of {page}")


if __name__ == "__main__":
    main()
