"""`weighbridge inspect list|show`: which inspections there are, and what one of them found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from weighbridge.cli._exits import Exit, one_line, print_json
from weighbridge.cli._inputs import Json
from weighbridge.cli.inspect.connection import Address, Directory, Inspection, connected
from weighbridge.cli.report import outcome

_SUBJECTS = 6


def add(app: typer.Typer) -> None:
    """Adds the commands to a group."""
    app.command("list")(list_)
    app.command("show")(show)


def list_(
    verifier: Address,
    credentials: Directory,
    limit: Annotated[int, typer.Option("--limit", help="At most so many, the newest first.", min=1, max=1000)] = 20,
    as_json: Json = False,
) -> None:
    """List inspections: state, verdict, p, findings and time, the newest first."""
    with connected(verifier, credentials) as operator:
        rows = operator.inspections(limit=limit)
    if as_json:
        print_json({"inspections": rows})
        return
    print_table(("inspection", "started", "state", "verdict", "p", "chips", "explained", "found"), map(_cells, rows))


def _cells(row: Mapping[str, Any]) -> list[str]:
    done = row["verdict"] is not None
    found = f"{row['violations']} violations, {row['warnings']} warnings" if done else "-"
    explained = f"{row['explained']} of {row['snapshots']}" if done else "-"
    p = "-" if row["p"] is None else f"{row['p']:.4f}"
    started, verdict = row["created_at"].replace("T", " ").replace("Z", " UTC"), row["verdict"] or "-"
    return [row["inspection"], started, row["stage"], verdict, p, str(row["samples"]), explained, found]


def show(inspection: Inspection, verifier: Address, credentials: Directory, as_json: Json = False) -> int:
    """Show one inspection, with equal findings in one group: exit 0 if nothing was found, 1 if something was."""
    from verifier.report.signing import open_report
    from weighbridge.cli.inspect.commands import print_outcome

    with connected(verifier, credentials) as operator:
        identifier = operator.whole(inspection)
        (row,) = operator.inspections(identifier)
        report = open_report(operator.signed_report(identifier)).report if row["stage"] == "done" else None
    grouped = None if report is None else groups(report["findings"])
    if as_json:
        print_json({**row, "findings": grouped})
    else:
        print(f"inspection {identifier}, started {row['created_at']}: {row['stage']}")
        if report is not None and grouped is not None:
            print_outcome(report)
            print_groups(report, grouped)
    return Exit.NOTHING_FOUND if report is None else outcome(report)


def groups(findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns findings that say the same as one, with all their subjects, violations first."""
    from verifier.report.finding_groups import group

    return [
        {
            "severity": one.severity,
            "id": one.id,
            "message": one.message,
            "count": len(one.cases),
            "subjects": [case["subject"] for case in one.cases],
        }
        for one in group(findings)
    ]


def print_groups(report: Mapping[str, Any], grouped: Sequence[Mapping[str, Any]]) -> None:
    """Prints groups of findings for people, chips by name."""
    from verifier.report.chip_names import named, names

    called = names(report)
    for each in grouped:
        count = f" ({each['count']} times)" if each["count"] > 1 else ""
        print(one_line(named(f"{each['severity']}: {each['id']}{count}: {each['message']}", called)))
        for subject in each["subjects"][:_SUBJECTS]:
            print("  " + one_line(named(subject, called)))
        if each["count"] > _SUBJECTS:
            print(f"  and {each['count'] - _SUBJECTS} more; --json lists all")


def print_table(head: Sequence[str], rows: Any) -> None:
    """Prints rows of text in columns that are as wide as their widest cell."""
    cells = [list(head), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
