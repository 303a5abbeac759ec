"""One inspection, from the draw to the report.

It collects facts from chips and Provers, replays what they claim, and lets the checks judge (`verifier.stages`). A chip
that is dead, a log that is damaged or a Prover that lies costs its own part of the inspection and no other.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from cryptography.x509 import Certificate

from verifier import stages
from verifier.contact.uploaded_explanations import Uploaded
from verifier.contact.witness import Witness
from verifier.draw.chip_selection import Sampled
from verifier.farm.local_farm import Farm, LocalFarm
from verifier.model.check_runner import Given
from verifier.model.collected import Collected
from verifier.model.facts import Plan
from verifier.model.reference_values import FirmwarePolicy
from verifier.model.segments import Secret
from verifier.registry import Registry
from verifier.report import document, statistical_evidence
from verifier.report.conclusion import conclude
from verifier.report.regime import NO_RULES, Regime
from verifier.stages.setting import Cancelled, InspectionStoppedError, Progress, Setting
from verifier.store.cache import Cache
from verifier.units import Units
from weighbridge.attest.beacon import Beacon
from weighbridge.attest.identity import Credentials
from weighbridge.core.errors import UsageError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.worker_process import Limits

__all__ = ["Inspection", "InspectionStoppedError", "Progress"]


class Inspection:
    """Everything that one inspection needs and finds."""

    def __init__(
        self,
        *,
        identifier: str,
        plan: Plan,
        registry: Registry,
        cache: Cache,
        credentials: Credentials,
        manufacturer: Certificate,
        firmware: FirmwarePolicy,
        progress: Progress,
        witness: Witness | None = None,
        limits: Limits | None = None,
        farm: Farm | None = None,
        transient: Progress | None = None,
        cancelled: Cancelled | None = None,
        secret: Secret | None = None,
        regime: Regime | None = None,
        sampled: Sampled | None = None,
        uploaded: Uploaded | None = None,
        beacon: Beacon | None = None,
    ) -> None:
        """Prepares an inspection that the registry already knows, with the chips drawn.

        Args:
            identifier: As in the registry.
            plan: What to do.
            registry: Where the chips are.
            cache: Where transcripts are kept.
            credentials: The Verifier's own.
            manufacturer: Root certificate that device identities must lead to.
            firmware: Which firmware chips may run.
            progress: Told of every unit of work.
            witness: Who holds the logs that were read before; by default one that cosigns nothing.
            limits: Of each replay.
            farm: Where replays run; by default one after the other on this machine.
            transient: Told how far each unit of work is.
            cancelled: Asked whether to end, from any thread; `run` raises `InspectionStoppedError` then.
            secret: The criteria that the plan commits to, if it does.
            regime: Rules, policy and benchmarks; by default no rules.
            sampled: The draw that was committed to; None if the plan's seed was given.
            uploaded: Transcripts that Provers handed in; they explain what no Prover's service does.
            beacon: The beacon whose values name segments that are due while runs go on.

        Raises:
            UsageError: The plan commits to other criteria.
        """
        if plan.segments.commitment != ("" if secret is None else secret.commitment()):
            raise UsageError("the plan does not commit to the secret criteria that are there; put their hash into it")
        witness = witness or Witness(registry, manufacturer)
        self._sampled = sampled
        self._setting = Setting(
            id=identifier,
            given=Given(plan=plan, firmware=firmware, witness=witness.key, least=(regime or NO_RULES).least),
            registry=registry,
            cache=cache,
            credentials=credentials,
            manufacturer=manufacturer,
            witness=witness,
            limits=limits or Limits(),
            units=Units(registry.session, cache, identifier),
            farm=farm or LocalFarm(),
            progress=progress,
            transient=transient or (lambda *_: None),
            cancelled=cancelled or (lambda: False),
            secret=secret,
            regime=regime or NO_RULES,
            beacon=beacon,
            uploaded=uploaded,
        )

    def run(self) -> dict[str, Any]:
        """Does what has not been done of the inspection, and returns its report as JSON-compatible data."""
        setting, collected = self._setting, Collected()
        record = setting.registry.inspection(setting.id)
        population = setting.units.once("population", "", setting.registry.population_size, to=int, of=int)
        for stage in stages.ALL:
            stage(setting, collected)
        sampled, verified = self._sampled, collected.verified()
        if sampled is not None:
            collected.report(sampled.findings())
        concluded = conclude(
            collected,
            setting.plan,
            setting.regime,
            population=population,
            certain=() if sampled is None else sampled.certain,
        )
        return document.build(
            inspection=setting.id,
            created_at=record.created_at,
            finished_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            plan=setting.plan,
            firmware=setting.given.firmware,
            population=population,
            logs=collected.logs,
            snapshots=collected.snapshots,
            transcripts=list(collected.transcripts.values()),
            findings=concluded.findings,
            verified=verified,
            draw=None if sampled is None else sampled.section(verified, collected.found_against()),
            conclusion=concluded,
            evidence=statistical_evidence.build(
                collected, None if (rules := setting.regime.rules) is None else rules.rules.lists
            ),
            parents=[each for _, each in collected.lineage_replays if isinstance(each, ReplayResult)],
        )
