"""The registry as a table: lists of chips in and out as CSV (RFC 4180, UTF-8), read and written a few rows at a time.

A file is imported as a whole or not at all. Every bad row is named by its line, so that one round of corrections is
enough. What was exported can be imported again, and is then exported as it was. The parties name owners and sites, so a
cell that a spreadsheet would execute is written with an apostrophe in front, which the import takes away.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import IO

from verifier.registry.directory import Registry
from verifier.registry.entries import Listing
from verifier.registry.listings import Lister, check
from weighbridge.core import spreadsheet_cells
from weighbridge.core.errors import UsageError

COLUMNS = ("ueid", "state", "owner", "site", "chip_type", "address", "prover_address", "name")
_NEEDED = {"ueid"}
_CHUNK = 400
_MOST_NAMED = 20


class TableError(UsageError):
    """A file is no table of chips, or some of its rows cannot be imported; `details["lines"]` has them all."""

    code = "registry.csv"


def export(registry: Registry, file: IO[str]) -> int:
    """Writes all chips, sorted by UEID, and returns how many there are.

    Args:
        registry: Where they are.
        file: Open for writing in UTF-8 and without translation of line ends (`newline=""`).
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    number = 0
    for number, chip in enumerate(registry.everything(), 1):  # noqa: B007 (the last number is the answer)
        rest = (chip.state, chip.owner, chip.site, chip.chip_type, chip.address, chip.prover_address, chip.name)
        writer.writerow((chip.ueid.hex(), *map(spreadsheet_cells.shown, rest)))
    return number


def import_(registry: Registry, file: Iterable[str]) -> int:
    """Lists the chips of a file, all or none, and returns how many rows it has.

    Args:
        registry: Where to.
        file: Lines; the first names columns of `COLUMNS` in any order, of which only `ueid` must be there.

    Raises:
        TableError: Rows are bad; nothing was imported.
    """
    wrong: dict[int, str] = {}
    number = 0
    with registry.session.begin() as session:
        lister = Lister(session, registry.log, registry.log.lock(session), registry.now())
        chunk: dict[int, Listing] = {}

        def flush() -> None:
            lines = list(chunk)
            for index, message in lister.add(list(chunk.values())):
                wrong[lines[index]] = message
            chunk.clear()

        for line, read in _rows(file):
            number += 1
            if isinstance(read, Listing):
                chunk[line] = read
            else:
                wrong[line] = read
            if len(chunk) == _CHUNK:
                flush()
        flush()
        if wrong:  # leaving the block by an error undoes everything in it
            raise _refusal(wrong)
    return number


def _refusal(wrong: dict[int, str]) -> TableError:
    named = [f"line {line}: {message}" for line, message in sorted(wrong.items())]
    more = f"; and {len(named) - _MOST_NAMED} lines more" if len(named) > _MOST_NAMED else ""
    return TableError(
        f"nothing was imported, because {'; '.join(named[:_MOST_NAMED])}{more}; correct the file and import it again",
        lines={str(line): message for line, message in sorted(wrong.items())},
    )


def _rows(file: Iterable[str]) -> Iterator[tuple[int, Listing | str]]:
    """Yields (number of the row's last line, the chip or what is wrong with the row)."""
    reader = csv.reader(_decoded(file), strict=True)
    try:
        head = [name.strip() for name in next(reader, [])]
        if head and head[0].startswith("\ufeff"):
            head[0] = head[0].removeprefix("\ufeff")
        if not set(head) <= set(COLUMNS) or len(set(head)) != len(head) or not set(head) >= _NEEDED:
            raise TableError(
                f"nothing was imported, because line 1 must name columns, {', '.join(COLUMNS)}, each at most once "
                "and `ueid` among them; correct the file and import it again"
            )
        for row in reader:
            if row:
                yield reader.line_num, _chip(head, row)
    except csv.Error as error:  # the rest of the file cannot be told into rows
        yield reader.line_num, f"no CSV ({error})"


def _decoded(file: Iterable[str]) -> Iterator[str]:
    lines = iter(file)
    number = 0
    while True:
        number += 1
        try:
            line = next(lines)
        except StopIteration:
            return
        except UnicodeDecodeError:
            raise TableError(
                f"nothing was imported, because the file is not UTF-8 from about line {number} on; save it as UTF-8"
            ) from None
        yield line


def _chip(head: list[str], row: list[str]) -> Listing | str:
    if len(row) != len(head):
        return f"{len(row)} values, and line 1 names {len(head)} columns"
    values = (
        dict.fromkeys(COLUMNS, "")
        | {"state": "installed"}
        | dict(zip(head, map(spreadsheet_cells.meant, row), strict=True))
    )
    try:
        ueid = bytes.fromhex(values.pop("ueid"))
    except ValueError:
        return "the UEID is not hexadecimal"
    chip = Listing(ueid=ueid, **values)
    try:
        check(chip)
    except UsageError as error:
        return error.message
    return chip
