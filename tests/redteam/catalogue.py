"""All attacks that are tried, in the order of their page."""

from __future__ import annotations

from redteam import chip_records, on_chips, origins, steering, tolerance, values
from redteam.row import Row

ROWS: tuple[Row, ...] = (
    *values.ROWS,
    *steering.ROWS,
    *tolerance.ROWS,
    *origins.ROWS,
    *on_chips.ROWS,
    *chip_records.ROWS,
)
