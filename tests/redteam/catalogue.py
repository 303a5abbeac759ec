"""All attacks that are tried, in the order of their page."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from redteam import (
    came_back,
    chip_records,
    clocks,
    counters,
    disguised,
    doors,
    excuses,
    harm,
    inconclusive,
    logs,
    numbers_beside,
    omissions,
    on_chips,
    origins,
    placement,
    power,
    renames,
    schedule_counts,
    silence,
    spelled,
    steering,
    tolerance,
    unrecognised,
    values,
    verifiers_files,
)
from redteam.row import Row

AREAS: Mapping[str, tuple[Row, ...]] = {
    "Histories, programs, and choices that could be weights": (
        *values.ROWS,
        *unrecognised.ROWS,
        *steering.ROWS,
        *tolerance.ROWS,
        *came_back.ROWS,
        *origins.ROWS,
        *counters.ROWS,
        *spelled.ROWS,
        *numbers_beside.ROWS,
        *schedule_counts.ROWS,
        *renames.ROWS,
        *logs.ROWS,
        *inconclusive.ROWS,
    ),
    "Undeclared work, snapshots and what a chip holds": (
        *on_chips.ROWS,
        *disguised.ROWS,
        *excuses.ROWS,
    ),
    "Chips, firmware and their logs": (
        *chip_records.ROWS,
        *power.ROWS,
        *clocks.ROWS,
    ),
    "The draw, the registry and rules": (
        *silence.ROWS,
        *placement.ROWS,
        *omissions.ROWS,
    ),
    "The Verifier's machines and files": (
        *harm.ROWS,
        *verifiers_files.ROWS,
        *doors.ROWS,
    ),
}
"""Rows by the headings under which their page has them; most headings are the threat model's."""

ROWS: tuple[Row, ...] = tuple(chain.from_iterable(AREAS.values()))
