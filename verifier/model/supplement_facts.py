"""Rounding logs that Provers were asked to make on demand: what was asked, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weighbridge.core.errors import Finding, ProverError, WeighbridgeError

Steps = tuple[int, int]
"""(first step, step after the last one)."""

LATE = "prover.supplements.late"
"""Why there is no supplement: the deadline passed."""
REFUSED = "prover.supplements.refused"
"""Why there is no supplement: the Prover refuses, its repeat differs, or it sends something else."""
MISSING = "prover.supplements.missing"
"""What is said of a Prover who did not answer all requests of an inspection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One request for the logs of some steps of one run.

    Attributes:
        prover: Address of the Prover that was asked; empty if a transcript was uploaded and there is none to ask.
        transcript: Identifier of the transcript.
        steps: The steps whose logs were wanted.
        came: How many of them have a supplement that is this run's and signed by its key.
        deadline_s: Seconds that the Prover had.
        seconds: How long it took.
        why: Why the others have none; None if all came.
        findings: What is wrong with what came, and whether the Prover signed two logs for one step.
    """

    prover: str
    transcript: str
    steps: Steps
    came: int
    deadline_s: float
    seconds: float
    why: WeighbridgeError | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def wanted(self) -> int:
        """How many supplements were wanted."""
        return self.steps[1] - self.steps[0]

    @property
    def regenerated(self) -> bool:
        """Whether all of them came."""
        return self.came == self.wanted

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data for the report."""
        return {
            "prover": self.prover, "transcript": self.transcript, "begin": self.steps[0], "end": self.steps[1],
            "came": self.came, "deadline_s": self.deadline_s, "seconds": round(self.seconds, 3),
            "why": "" if self.why is None else self.why.reason,
        }  # fmt: skip


def finding_of(reason: str) -> str:
    """Returns the identifier of the finding about a request that was not answered with every log.

    Args:
        reason: The code of why; empty if the Prover sent fewer without a word.
    """
    return reason if reason in (LATE, REFUSED, ProverError.code) else REFUSED


def subject_of(prover: str) -> str:
    """Returns what a finding about all requests of a Prover is about."""
    return f"Prover {prover}" if prover else "uploaded transcripts"


Count = tuple[int, int]
"""(requests, those of them that were answered with every log)."""


def counted(asked: Iterable[Asked]) -> dict[str, Count]:
    """Counts requests by Prover."""
    out: dict[str, Count] = {}
    for each in asked:
        before = out.get(each.prover, (0, 0))
        out[each.prover] = before[0] + 1, before[1] + each.regenerated
    return dict(sorted(out.items()))


def section(asked: Iterable[Asked], earlier: Mapping[str, Count]) -> dict[str, Any]:
    """Returns what a report says of requests: each of this inspection, and by Prover how many were answered.

    Args:
        asked: The requests of this inspection.
        earlier: Those of earlier inspections of the same Verifier, by Prover.
    """
    asked = list(asked)
    provers = [
        {
            "prover": prover, "asked": own[0], "regenerated": own[1],
            "asked_before": earlier.get(prover, (0, 0))[0], "regenerated_before": earlier.get(prover, (0, 0))[1],
        }
        for prover, own in counted(asked).items()
    ]  # fmt: skip
    return {"requests": [each.to_json() for each in asked], "provers": provers}
