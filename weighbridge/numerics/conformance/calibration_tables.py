"""Tables of calibrated factors: the committed one, and those that the user of this program has put into a directory.

A table is measured on one kind of device (`weighbridge calibrate`). The draft of a recording names the table by its
digest, and a replay takes that one or, if it does not have it, refuses (`replay.calibration.unknown`). So a Prover may
measure a table, but the party that replays decides whether bounds as wide as that are acceptable.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from weighbridge.core.digests import record_digest
from weighbridge.core.errors import UsageError

COMMITTED = Path(__file__).parent / "calibration.json"
DIRECTORY = "WEIGHBRIDGE_CALIBRATIONS"
"""Environment variable that names the directory of further tables, files `*.json`."""
_MOST_FILES, _MOST_BYTES, _MOST_OPERATIONS = 64, 1 << 20, 2000
_MOST_TEXT = 200
_LARGEST = 1e6


@dataclass(frozen=True, slots=True)
class CalibrationTable:
    """Measured factors.

    Attributes:
        factors: Of each operation's calibrated bound, by operator name.
        digest: Hex digest of the factors.
        device: Model of the device on which they were measured (`device_kind.device_model`).
    """

    factors: Mapping[str, float]
    digest: str
    device: str


@cache
def committed() -> CalibrationTable:
    """Returns the table that comes with this version."""
    return parse(json.loads(COMMITTED.read_text()))


@cache
def tables() -> dict[str, CalibrationTable]:
    """Returns all tables by digest, the committed one first; files are read once.

    Raises:
        UsageError: A file in the directory is no table.
    """
    found = {committed().digest: committed()}
    directory = os.environ.get(DIRECTORY)
    if directory:
        files = sorted(Path(directory).glob("*.json"))
        if not Path(directory).is_dir() or len(files) > _MOST_FILES:
            raise UsageError(f"{DIRECTORY} names {directory}, which is no directory of at most {_MOST_FILES} tables")
        for file in files:
            table = read(file)
            found.setdefault(table.digest, table)
    return found


def measured_on(device: str) -> CalibrationTable:
    """Returns the table that was measured on a model of device: the last by name of file, else the committed one."""
    return next((each for each in reversed(tables().values()) if each.device == device), committed())


def read(file: Path) -> CalibrationTable:
    """Reads a table from a file.

    Raises:
        UsageError: It is none.
    """
    try:
        with file.open("rb") as source:
            data = source.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError
        return parse(json.loads(data))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise UsageError(f"{file} is no table of calibrated factors; make one with `weighbridge calibrate`") from None


def parse(raw: Any) -> CalibrationTable:
    """Returns the table that a file holds.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: It is none.
    """
    device, operations = raw["device"], raw["operations"]
    if not isinstance(device, str) or not device.isprintable() or len(device) > _MOST_TEXT:
        raise ValueError
    if not 0 < len(operations) <= _MOST_OPERATIONS:
        raise ValueError
    factors = {}
    for name, each in operations.items():
        factor = each["factor"]
        if type(factor) not in (int, float) or not math.isfinite(factor) or not 0 < factor <= _LARGEST:
            raise ValueError
        if not isinstance(name, str) or not name.isidentifier() or len(name) > _MOST_TEXT:
            raise ValueError
        factors[name] = float(factor)
    return CalibrationTable(factors, record_digest("calibration/1", factors).hex(), device)
