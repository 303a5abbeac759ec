"""Did Provers make the rounding logs that they were asked for, and only one of each step?

A Prover may have logs made on demand, and says then that it can make them. That a repeat differs, takes too long, or is
not made accuses no party by itself: machines break. But a Prover who committed to what it did not compute would say the
same. So it is a warning each time, and requests are counted by Prover over all inspections of this Verifier.
"""

from __future__ import annotations

from collections.abc import Iterator

from verifier.model.collected import Collected
from verifier.model.supplement_facts import MISSING, Asked, counted, finding_of, subject_of
from weighbridge.core.errors import Finding


def check(collected: Collected) -> list[Finding]:
    """Says what became of the requests of one inspection, and of those of its Provers in earlier ones."""
    return [
        *(finding for asked in collected.supplements for finding in asked.findings),
        *(_missing(asked) for asked in collected.supplements if not asked.regenerated),
        *_by_prover(collected),
    ]


def _missing(asked: Asked) -> Finding:
    why = "it sent fewer" if asked.why is None else asked.why.message[:500]
    first, last = asked.steps
    return Finding(
        id=finding_of("" if asked.why is None else asked.why.reason),
        message=f"the Prover did not make the rounding logs of steps {first} to {last - 1}, which it is to make on "
        f"demand: {why}; where results differ from the replay's for want of them, nothing is verified: ask on which "
        f"machine it can make them, and inspect again",
        # No two requests may say the same here: of equal findings a report has one.
        expected=f"{asked.wanted} rounding logs within {asked.deadline_s:g} s, from step {first} on",
        found=f"{asked.came} after {asked.seconds:.0f} s" + (f" from {asked.prover}" if asked.prover else ""),
        subject=f"transcript {asked.transcript}",
        severity="warning",
        evidence={"begin": first, "end": last, "prover": asked.prover},
    )


def _by_prover(collected: Collected) -> Iterator[Finding]:
    for prover, (asked, answered) in counted(collected.supplements).items():
        if answered == asked:
            continue
        before = collected.earlier.get(prover, (0, 0))
        total, made = asked + before[0], answered + before[1]
        yield Finding(
            id=MISSING,
            message=f"of {total} segments whose rounding logs this Prover was asked for, {total - made} were not made; "
            f"{before[0]} were asked for in earlier inspections, and {before[0] - before[1]} of those not made. An "
            "honest Prover who kept its machine and key makes all: the more are missing, the less its word is worth",
            expected=f"{total} segments",
            found=f"{made} segments",
            subject=subject_of(prover),
            severity="warning",
        )
