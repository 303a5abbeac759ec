"""Looks at the log of a chip that is switched off, without changing anything: what would be there at its next start?"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from firmware_sim.boot import Nameplate
from firmware_sim.fuses import Fuses
from firmware_sim.nvlog import MIN_CAPACITY, NonVolatileLog, rolled_back
from weighbridge.attest import tokens
from weighbridge.core.errors import ChipError, Finding, WeighbridgeError


@dataclass(kw_only=True, slots=True)
class Checked:
    """What was found.

    Attributes:
        entries: Entries that the chip acknowledged and has, released ones too.
        released: How many of them are with a witness only.
        torn_bytes: Bytes of an entry that was being written when the power went; the next start cuts them off.
        findings: What is wrong.
    """

    entries: int = 0
    released: int = 0
    torn_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)


def check(directory: Path) -> Checked:
    """Checks the records, their order, their signatures and the counter.

    It works on a copy, so that it can do what a start does, and leave the evidence as it is.

    Args:
        directory: Of the chip; it must not run.

    Raises:
        ChipError: The directory holds no device (`chip.device`).
    """
    root, plate = Fuses.read(directory).root, Nameplate.read(directory)
    result = Checked()
    with tempfile.TemporaryDirectory(prefix="weighbridge-fsck-") as temporary:
        copy = Path(temporary)
        try:
            if (directory / "nvram").is_dir():
                shutil.copytree(directory / "nvram", copy / "nvram")
            if (directory / "counter").exists():
                shutil.copy(directory / "counter", copy / "counter")
            before = _size(copy)
            with NonVolatileLog(copy, capacity=max(MIN_CAPACITY, 2 * before)) as log:
                result.entries, result.released = len(log), log.released
                result.torn_bytes = max(0, before - _size(copy))
                if log.missing:
                    result.findings.append(rolled_back(log.missing).finding(subject=str(directory)))
                previous = log.last_released
                for index in range(log.released, len(log)):
                    data = log.read(index)
                    subject = f"{directory} entry {index}"
                    try:
                        token = tokens.verify(data, root).token
                        if (token.index, token.previous, token.ueid) != (index, previous, plate.ueid):
                            raise ChipError("The entry does not continue the one before it.", code="chip.log.chain")
                    except WeighbridgeError as error:
                        result.findings.append(error.finding(subject=subject))
                    previous = tokens.entry_digest(data)
        except ChipError as error:
            result.findings.append(error.finding(subject=str(directory)))
        except OSError as error:
            message = f"The log cannot be read ({error.strerror})."
            result.findings.append(ChipError(message, code="chip.log.damaged").finding(subject=str(directory)))
    return result


def _size(directory: Path) -> int:
    try:
        return (directory / "nvram" / "log.bin").stat().st_size
    except FileNotFoundError:
        return 0
