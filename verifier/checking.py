"""How checks are run: all of them, over facts, none stopping another.

`verifier.checks` lists the checks. What one of them raises is a fault of the Verifier: it becomes the finding
`verifier.check.failed`, which accuses nobody, and what was to be checked does not count as verified.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from verifier.facts import Plan
from verifier.firmware import FirmwarePolicy
from weighbridge.errors import Finding
from weighbridge.tlog import NoteKey

T = TypeVar("T")

Weight = Literal["against", "unsampled", "beside"]
"""What follows from a finding of a check, beside its severity.

`against`: of a log, it is not kept as witnessed, and the chip does not count as sampled; of a snapshot, a violation
makes its status `mismatch`. `unsampled`: the chip or the snapshot does not count as sampled. `beside`: nothing.
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What checks may depend on besides the facts.

    Attributes:
        plan: What the inspection set out to do.
        firmware: Which firmware chips may run.
        witness: The key of the Verifier's own witness; None if it cosigns nothing.
    """

    plan: Plan
    firmware: FirmwarePolicy
    witness: NoteKey | None


@dataclass(frozen=True, slots=True)
class Check(Generic[T]):
    """One registered check.

    Attributes:
        name: Its module in `verifier.checks`.
        run: Returns the findings about some facts; fetches nothing, changes nothing, raises nothing on bad facts.
        weight: What follows from a finding.
    """

    name: str
    run: Callable[[T, Given], Iterable[Finding]]
    weight: Weight = "against"


@dataclass(slots=True)
class Judgement:
    """What all checks of one kind found about one thing.

    Attributes:
        findings: In the order of the checks.
        against: Findings of the checks that count against it.
        unsampled: Whether it cannot count as sampled.
        failed: Names of the checks that could not finish.
    """

    findings: list[Finding] = field(default_factory=list)
    against: list[Finding] = field(default_factory=list)
    unsampled: bool = False
    failed: list[str] = field(default_factory=list)

    @property
    def violated(self) -> bool:
        """Whether a violation counts against it."""
        return any(finding.severity == "violation" for finding in self.against)


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
            out.unsampled = True
            findings = [_failed(check.name, error, subject)]
        else:
            if check.weight == "against":
                out.against += findings
            out.unsampled |= check.weight == "unsampled" and bool(findings)
        out.findings += findings
    return out


def _failed(name: str, error: Exception, subject: str) -> Finding:
    return Finding(
        id="verifier.check.failed",
        message=f"the check {name} could not finish, which is a fault of the Verifier and accuses nobody; see its log",
        expected="an answer",
        found=type(error).__name__,
        subject=subject,
        severity="warning",
        evidence={"check": name},
    )
