"""What the stages of an inspection are given; none of it changes while they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cryptography.x509 import Certificate

from verifier.cache import Cache
from verifier.checking import Given
from verifier.facts import Plan
from verifier.registry import Registry
from verifier.segments import Secret
from verifier.witness import Witness
from weighbridge.identity import Credentials
from weighbridge.replay import Limits

Progress = Callable[[str, int, int, str], None]
"""Called with (stage, units done, units in all, one sentence). May raise `InspectionStoppedError`."""


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
        progress: Told of every unit of work.
        secret: The criteria that the plan commits to; the report opens them.
    """

    id: str
    given: Given
    registry: Registry
    cache: Cache
    credentials: Credentials
    manufacturer: Certificate
    witness: Witness
    limits: Limits
    progress: Progress
    secret: Secret | None = None

    @property
    def plan(self) -> Plan:
        """What the inspection set out to do."""
        return self.given.plan
