"""What the stages of an inspection are given; none of it changes while they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cryptography.x509 import Certificate

from verifier.contact.uploaded_explanations import Uploaded
from verifier.contact.witness import Witness
from verifier.farm.local_farm import Farm
from verifier.model import check_runner, fact_codec
from verifier.model.check_runner import Check, Given, Judgement
from verifier.model.facts import Plan
from verifier.model.segments import Secret
from verifier.registry import Registry
from verifier.report.regime import NO_RULES, Regime
from verifier.store.cache import Cache
from verifier.units import Units, key_of
from weighbridge.attest.beacon import Beacon
from weighbridge.attest.identity import Credentials
from weighbridge.execution.worker_process import Limits

T = TypeVar("T")

Progress = Callable[[str, int, int, str], None]
"""Called with (stage, units done, units in all, one sentence). May raise `InspectionStoppedError`."""

Cancelled = Callable[[], bool]
"""Whether the process that runs the inspection wants to end; asked from any thread."""


class InspectionStoppedError(Exception):
    """The process that runs the inspection wants to end. Not about the input, so no check may take it for a finding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One inspection's plan, and what the Verifier has to carry it out.

    Attributes:
        id: As in the registry.
        given: The plan, and what else checks may depend on.
        registry: Where the chips are.
        cache: Where transcripts are kept.
        credentials: The Verifier's own.
        manufacturer: Root certificate that device identities must lead to.
        witness: Who holds the logs that were read before.
        limits: Of each replay.
        units: What the inspection has done already, also in former processes.
        farm: Where replays run.
        progress: Told of every unit of work.
        transient: Told how far a unit of work is; what it is told may be forgotten.
        cancelled: Whether to end.
        secret: The criteria that the plan commits to; the report opens them.
        regime: Rules, policy and benchmarks.
        uploaded: Transcripts that Provers handed in, if they may.
        beacon: The beacon whose values name segments that are due while runs go on; None if there is none.
    """

    id: str
    given: Given
    registry: Registry
    cache: Cache
    credentials: Credentials
    manufacturer: Certificate
    witness: Witness
    limits: Limits
    units: Units
    farm: Farm
    progress: Progress
    transient: Progress
    cancelled: Cancelled
    secret: Secret | None = None
    regime: Regime = NO_RULES
    uploaded: Uploaded | None = None
    beacon: Beacon | None = None

    @property
    def plan(self) -> Plan:
        """What the inspection set out to do."""
        return self.given.plan

    def judged(self, kind: str, name: str, checks: Sequence[Check[T]], facts: T, *, subject: str) -> Judgement:
        """Runs checks over facts, unless that was done already; see `verifier.model.check_runner.judge`.

        Args:
            kind: What kind of facts they are.
            name: Which facts.
            checks: One of the lists in `verifier.checks`.
            facts: What they look at.
            subject: What to call the facts if a check fails.
        """
        # What a judgement may depend on is part of its key: a Verifier may be started again with another policy.
        basis = [self.given.plan.to_json(), self.given.firmware.to_json(), str(self.given.witness), self.given.least]
        key = key_of(kind, name, fact_codec.plain(basis), [check.name for check in checks])
        found = self.units.get("judged", key, fact_codec.judgement_of)
        if found is None:
            found = check_runner.judge(checks, facts, self.given, subject=subject)
            if not found.failed:  # what failed may be repaired when the Verifier is started again
                self.units.put("judged", key, fact_codec.judgement_to(found))
        return found
