"""All attacks that are tried, in the order of their page."""

from __future__ import annotations

from redteam import (
    chip_records,
    counters,
    harm,
    inconclusive,
    logs,
    numbers_beside,
    on_chips,
    origins,
    placement,
    renames,
    silence,
    spelled,
    steering,
    tolerance,
    values,
)
from redteam.row import Row

ROWS: tuple[Row, ...] = (
    *values.ROWS,
    *steering.ROWS,
    *tolerance.ROWS,
    *origins.ROWS,
    *counters.ROWS,
    *spelled.ROWS,
    *numbers_beside.ROWS,
    *renames.ROWS,
    *logs.ROWS,
    *inconclusive.ROWS,
    *on_chips.ROWS,
    *chip_records.ROWS,
    *silence.ROWS,
    *placement.ROWS,
    *harm.ROWS,
)
