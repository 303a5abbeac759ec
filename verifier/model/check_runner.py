"""How checks are run: all of them, over facts, none stopping another.

`verifier.checks` lists the checks. What one of them raises is a fault of the Verifier: it becomes the finding
`verifier.check.failed`, which is not evidence against the Prover, and what was to be checked does not count as
verified.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from verifier.model.facts import Plan
from verifier.model.reference_values import FirmwarePolicy
from weighbridge.attest.tlog import NoteKey
from weighbridge.core.errors import Finding

T = TypeVar("T")

Effect = Literal["violation_counts", "not_sampled", "reported_only"]
"""What follows from a finding of a check, besides its severity.

`violation_counts`: a log is not kept as witnessed, and the chip does not count as verified; a snapshot with a
violation gets the status `mismatch`. `not_sampled`: the chip or the snapshot does not count as verified.
`reported_only`: nothing.
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What checks may depend on besides the facts.

    Attributes:
        plan: What the inspection set out to do.
        firmware: Which firmware chips may run.
        witness: The key of the Verifier's own witness; None if it cosigns nothing.
        least: The smallest H, in FLOPs, that one of the rules to be judged needs; None without a rule about sizes.
    """

    plan: Plan
    firmware: FirmwarePolicy
    witness: NoteKey | None
    least: float | None = None


@dataclass(frozen=True, slots=True)
class Check(Generic[T]):
    """One registered check.

    Attributes:
        name: Its module in `verifier.checks`.
        run: Returns the findings about some facts; fetches nothing, changes nothing, raises nothing on bad facts.
        effect: What follows from a finding.
    """

    name: str
    run: Callable[[T, Given], Iterable[Finding]]
    effect: Effect = "violation_counts"


@dataclass(slots=True)
class Judgement:
    """What all checks of one kind found about one thing.

    Attributes:
        findings: In the order of the checks.
        counted: Findings of the checks that count against it.
        not_sampled: Whether it cannot count as verified.
        failed: Names of the checks that could not finish.
    """

    findings: list[Finding] = field(default_factory=list)
    counted: list[Finding] = field(default_factory=list)
    not_sampled: bool = False
    failed: list[str] = field(default_factory=list)

    @property
    def violated(self) -> bool:
        """Whether a violation counts against it."""
        return any(finding.severity == "violation" for finding in self.counted)


def judge(checks: Sequence[Check[T]], facts: T, given: Given, *, subject: str) -> Judgement:
    """Runs all checks over the same facts.

    Args:
        checks: One of the lists in `verifier.checks`.
        facts: What they look at.
        given: What they may depend on besides.
        subject: What to call the facts if a check fails.
    """
    out = Judgement()
    for check in checks:
        try:
            findings = list(check.run(facts, given))
        except Exception as error:  # whatever it is, the other checks still have to run
            _log.exception("check %s failed on %s", check.name, subject)
            out.failed.append(check.name)
            out.not_sampled = True
            findings = [_failed(check.name, error, subject)]
        else:
            if check.effect == "violation_counts":
                out.counted += findings
            out.not_sampled |= check.effect == "not_sampled" and bool(findings)
        out.findings += findings
    return out


def _failed(name: str, error: Exception, subject: str) -> Finding:
    return Finding(
        id="verifier.check.failed",
        message=f"the check {name} could not finish, which is a fault of the Verifier and not evidence against the "
        "Prover; see the Verifier's log",
        expected="an answer",
        found=type(error).__name__,
        subject=subject,
        severity="warning",
        evidence={"check": name},
    )
