"""What the demo prints when all is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weighbridge.cli.demo.cases import PERIOD_DAYS, Outcome

if TYPE_CHECKING:
    from rich.console import Console

    from weighbridge.cli.demo.sealed import Left
    from weighbridge.cli.demo.services import Served


def show(report: Mapping[str, Any], outcomes: Sequence[Outcome], page: Path, console: Console) -> None:
    """Prints what came out."""
    from rich.markup import escape
    from rich.table import Table

    from verifier.report import training
    from verifier.report.extent import replays_in_words

    table = Table("chip", "what ran", "snapshots", "explained", "found", "as it should", title="Inspection")
    for o in outcomes:
        verdict = "[green]yes[/]" if o.as_said else "[red]NO[/]"
        table.add_row(*map(escape, (o.name, o.words, str(o.snapshots), str(o.explained), o.found)), verdict)
    console.print(table)
    counts, p = report["counts"], report["probability"]
    for transcript in (transcript for transcript in report["transcripts"] if transcript["rounded"]):
        console.print(
            f"{escape(transcript['name'])}: {transcript['replays']} replays, {transcript['rounded']:,} roundings, "
            f"{transcript['followed']:,} of which would have diverged without the log",
            highlight=False,
        )
    console.print(
        f"{counts['sampled']} of {counts['registered']} chips sampled, {counts['verified']} verified without doubt, "
        f"{counts['unverified_after_draw']} unverified after the draw was known. "
        f"A violation of one chip for {PERIOD_DAYS:.0f} days would have been seen with p = {p['hypergeometric']:.3f} "
        f"(equation 1: {p['eq1']:.3f}); p is not the probability of compliance.",
        highlight=False,
    )
    console.print(f"Replays: {replays_in_words(report)}.", highlight=False)
    for line in training.in_words(report):
        console.print(escape(line), highlight=False, soft_wrap=True)
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)


def show_sealed(left: Left, console: Console) -> None:
    """Prints what left the sealed inspection, beside what the open one showed."""
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(left.record["snapshots"].items()) if count)
    same = "[green]the same[/]" if left.as_said else "[red]NOT THE SAME[/]"
    console.print(
        f"Sealed inspection, {left.record['s']} of {left.record['C']} chips drawn: {left.size} bytes left it. "
        f"Snapshots: {statuses or 'none'}; violations: "
        f"{', '.join(sorted(left.record['violations'])) or 'none'}. The open inspection found {same}.",
        highlight=False,
    )


def show_services(served: Sequence[Served], console: Console) -> None:
    """Prints what came of the orders."""
    from rich.table import Table

    columns = ("service", "steps run", "first delivery", "second delivery", "audit", "dispute", "as it should")
    table = Table(*columns, title="Services that audit each other: 12 steps were ordered of each")
    for each in served:
        found = ["\n".join(codes) or "nothing" for codes in (each.delivered, each.claimed, each.audit)]
        verdict = "[green]yes[/]" if each.as_said else "[red]NO[/]"
        dispute = "\n".join(each.dispute) or "none"
        table.add_row(
            each.service, str(each.run), found[0], found[1], f"by {each.auditor}: {found[2]}", dispute, verdict
        )
    console.print(table)
