"""The page of a bundle: for readers who are no engineers. What was found, how sure that is, and what it rests on.

It is made from the statement and the report alone, so that a reader recomputes it with software of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from verifier.evidence.bundle import Statement
from verifier.report import extent
from verifier.report.earlier_reports import as_current
from verifier.report.miss_bound import P_IS
from verifier.report.names import Names
from verifier.report.page import page_environment

NAME = "index.html"

_PARTS = (
    (
        r"report\.dsse",
        "The report of the inspection",
        "the Verifier",
        "what the Verifier states, and every figure from which its probability follows",
    ),
    (
        "draw/",
        "The record of the draw",
        "the Verifier and its witnesses",
        "that neither the Verifier nor the owner of the chips could choose which chips were looked at",
    ),
    (
        "registry/",
        "Entries of the registry's log",
        "the registry, by the root to which the draw was committed",
        "who made, owns and holds the chip",
    ),
    (
        "chip/(checkpoint|head|tile)",
        "The chip's log",
        "the chip, with a key that its manufacturer certified",
        "what the chip recorded, entry by entry, in an order that cannot be changed afterwards",
    ),
    (
        r"chip/opening\.cbor",
        "The chip's opening of the snapshot",
        "the chip, by the root in its log",
        "how large each piece of its memory was, and the digest of each",
    ),
    (
        "transcript/",
        "The transcript of the training",
        "the developer who trained (the Prover)",
        "the program and the data of the training, so that anyone can repeat it and compare",
    ),
)
"""Pattern of the names of parts, what it is, who vouches for it, and what it shows."""


def render(statement: Statement, report: Mapping[str, Any]) -> str:
    """Renders the page of a bundle.

    Args:
        statement: What the bundle states; the page itself may be missing among its parts.
        report: The inspection's report.
    """
    report = as_current(report)
    subject = statement.subject
    chip = next((each for each in report["chips"] if each["ueid"] == subject.chip), None)
    row = next((each for each in (chip or {"snapshots": ()})["snapshots"] if each["index"] == subject.entry), None)
    run = next((each for each in report["transcripts"] if each["id"] == subject.transcript), None)
    names = Names(report["chips"], report["transcripts"])
    environment = page_environment()
    environment.filters |= {"named": names.marked_text}
    return environment.get_template("evidence.html").render(
        statement=statement,
        report=report,
        finding=None if subject.finding is None else report["findings"][subject.finding],
        chip=chip,
        row=row,
        run=run,
        names=names,
        here=_here(statement),
        nothing=extent.nothing_checked(report),
        p_is=P_IS,
    )


def _here(statement: Statement) -> Sequence[tuple[str, str, str, int]]:
    """Returns of each kind of part that the bundle has: what it is, who vouches for it, what it shows, its bytes."""
    rows = []
    for pattern, what, who, shows in _PARTS:
        sizes = [part.bytes for name, part in statement.parts.items() if re.match(pattern, name)]
        if sizes:
            rows.append((what, who, shows, sum(sizes)))
    return rows
