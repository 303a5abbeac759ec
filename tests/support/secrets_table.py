"""The tables of docs/formats/confidential.md, read strictly, and compared with the fields that there are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

HEAD = "| of | fields | class | today | what a reader learns |"
RULE = "|---|---|---|---|---|"
CLASSES = ("public", "hiding", "worker-only")
TODAY = ("shown", "hidden")
_NAME = re.compile(r"`([^`|]+)`(?: \([^`|()]+\))?")


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        of: What the fields are fields of.
        fields: Their names.
        kind: Their class.
        today: Whether today's protocol shows them to the Verifier.
        why: What a reader learns from them.
    """

    of: str
    fields: tuple[str, ...]
    kind: str
    today: str
    why: str


class TableError(ValueError):
    """A row that is not in the form of the tables."""


def parse(page: str) -> list[Row]:
    """Returns the rows of all tables with the head `HEAD`, in order; other tables are passed over.

    Law: of `HEAD`, `RULE` and `write(row)` of each of some rows it gives these rows.

    Raises:
        TableError: A row has another form, or a word that is no class.
    """
    rows: list[Row] = []
    lines = iter(page.splitlines())
    for line in lines:
        if line != HEAD:
            continue
        if next(lines, "") != RULE:
            raise TableError("a table's head is not followed by its rule")
        of = ""
        for row in lines:
            if not row.startswith("|"):
                break
            rows.append(_row(row, of))
            of = rows[-1].of
    return rows


def _row(line: str, before: str) -> Row:
    cells = [cell.strip() for cell in line.split("|")]
    if len(cells) != 7 or cells[0] or cells[-1]:
        raise TableError(f"not five cells: {line}")
    owner, names, kind, today, why = cells[1:-1]
    of = re.fullmatch(r"`([^`|]+)`", owner)
    if not of and (owner or not before):
        raise TableError(f"what the fields are of: {line}")
    each = [_NAME.fullmatch(name) for name in names.split(", ")]
    if not all(each):
        raise TableError(f"the names of fields: {line}")
    if kind not in CLASSES or today not in TODAY or (kind, today) == ("public", "hidden"):
        raise TableError(f"no class, or public and hidden at once: {line}")
    if not why:
        raise TableError(f"no reason: {line}")
    return Row(of[1] if of else before, tuple(name[1] for name in each if name), kind, today, why)


def write(row: Row) -> str:
    """Returns a row as it stands in a table."""
    names = ", ".join(f"`{name}`" for name in row.fields)
    return f"| `{row.of}` | {names} | {row.kind} | {row.today} | {row.why} |"


def classed(rows: Iterable[Row]) -> dict[tuple[str, str], Row]:
    """Returns the row of each field."""
    return {(row.of, name): row for row in rows for name in row.fields}


def problems(rows: Iterable[Row], inventory: Mapping[str, Set[str]]) -> list[str]:
    """Returns what is wrong with the tables: fields that are missing, there twice, or made up."""
    listed = Counter((row.of, name) for row in rows for name in row.fields)
    real = {(of, name) for of, names in inventory.items() for name in names}
    return [
        *(f"missing: {of} {name}" for of, name in sorted(real - listed.keys())),
        *(f"twice: {of} {name}" for (of, name), count in sorted(listed.items()) if count > 1),
        *(f"made up: {of} {name}" for of, name in sorted(listed.keys() - real)),
    ]


def counts(rows: Iterable[Row]) -> str:
    """Returns how many fields each class has, and how many of them today's protocol shows, as a table."""
    found = Counter((row.kind, row.today) for row in rows for _ in row.fields)
    lines = ["| class | fields | shown today | hidden today |", "|---|---|---|---|"]
    for kind in CLASSES:
        shown, hidden = (found[kind, today] for today in TODAY)
        lines.append(f"| {kind} | {shown + hidden} | {shown} | {hidden} |")
    return "\n".join(lines) + "\n"
