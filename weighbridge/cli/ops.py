"""`weighbridge ops`: which operations a recorded step may contain, and how much of PyTorch's core set that covers."""

from __future__ import annotations

from typing import Annotated

import typer

from weighbridge.cli._exits import Exit, print_json
from weighbridge.cli._inputs import Json
from weighbridge.core.errors import UsageError


def command(
    kind: Annotated[str | None, typer.Option("--kind", help="Only rules of this kind, e.g. rounded.")] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Only what has no rule; exit 1 if there is any.")] = False,
    as_json: Json = False,
) -> int:
    """Print the table of rules with its coverage of PyTorch's core ATen set: forms, backwards, foreach, fused."""
    import torch

    from weighbridge.numerics.coverage import Line, Status, coverage, summary
    from weighbridge.numerics.rule_table import RULES, Kind, table_digest

    if kind is not None and kind not in set(Kind):
        raise UsageError(f"there is no kind {kind!r}; choose one of {', '.join(Kind)}")
    lines = coverage()
    counts = summary(lines)
    listed = {each.name for each in lines}
    beyond = [
        Line(name, "", Status.REFUSED if rule.kind is Kind.REFUSED else Status.RULE, rule.kind.value, rule.note)
        for name, rule in sorted(RULES.items())
        if name not in listed
    ]
    chosen = [
        each
        for each in sorted([*lines, *beyond], key=lambda each: each.name)
        if (kind is None or each.kind == kind) and (not missing or each.status is Status.MISSING)
    ]
    if as_json:
        operations = {
            each.name: {"status": each.status.value, "kind": each.kind, "group": each.group, "note": each.note}
            for each in chosen
        }
        print_json({"torch": torch.__version__, "table": table_digest(), "coverage": counts, "operations": operations})
    else:
        width = max((len(each.name) for each in chosen), default=0)
        for each in chosen:
            what = each.kind if each.status is Status.RULE else each.status.value
            print(f"{each.name:{width}}  {what:10}  {each.group:8}  {each.note}".rstrip())
        parts = ", ".join(f"{counts[status]} {status}" for status in Status)
        print(f"core ATen of torch {torch.__version__}, {counts['all']} overloads: {parts}")
    return Exit.FINDINGS if missing and counts[Status.MISSING] else Exit.NOTHING_FOUND
