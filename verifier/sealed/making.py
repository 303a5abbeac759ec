"""Makes a case: draws the chips by the seed of the agreement, and reads and judges their logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.x509 import Certificate

from verifier.contact.witness import Witness
from verifier.farm.local_farm import LocalFarm
from verifier.model.agreed_population import AgreedPopulation
from verifier.model.check_runner import Given
from verifier.model.collected import Collected
from verifier.model.facts import Plan
from verifier.model.reference_values import FirmwarePolicy
from verifier.registry import Registry
from verifier.report import regime
from verifier.sealed.case import Case, check_agreed, seed_of
from verifier.stages import read_logs
from verifier.stages.setting import Setting
from verifier.store.cache import Cache
from verifier.units import Units
from weighbridge.attest.identity import Credentials
from weighbridge.attest.outcome_agreement import Agreement
from weighbridge.core.errors import UsageError
from weighbridge.execution.worker_process import Limits

STAGE = "sealed"
"""Stage of an inspection that goes on in a sealed worker: here nothing more is done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspectorate:
    """What a Verifier makes a case with.

    Attributes:
        registry: Where the chips are.
        cache: Where large outcomes of units lie.
        credentials: The Verifier's own.
        manufacturer: Root certificate that device identities must lead to.
        firmware: Which firmware chips may run.
        witness: Who holds the logs that were read before.
        rules: A signed rule set.
        parties: The keys of the parties that sign it.
        policy: The inspectorate's policy.
    """

    registry: Registry
    cache: Cache
    credentials: Credentials
    manufacturer: Certificate
    firmware: FirmwarePolicy
    witness: Witness
    rules: Path | None = None
    parties: Path | None = None
    policy: Path | None = None


def make(
    agreement: Agreement,
    population: AgreedPopulation,
    by: Inspectorate,
    *,
    beacon: bytes = b"",
    say: Callable[[str, int, int, str], None] = lambda *_: None,
) -> Case:
    """Draws chips, reads their logs, and returns the case.

    Args:
        agreement: What both parties agreed on about the outcome.
        population: The chips that the terms name.
        by: The Verifier's part.
        beacon: The value of the beacon that the terms name, JSON as a drand node gives it; empty without one.
        say: Told of every log.

    Raises:
        UsageError: This start has its case already, or its terms are of other rules, chips or another beacon.
        WeighbridgeError: The rules or the policy are none.
    """
    terms, registry = agreement.terms, by.registry
    applied = regime.load(rules=by.rules, parties=by.parties, policy=by.policy)
    if terms.rules.hex() != ("" if applied.rules is None else applied.rules.rules.digest):
        raise UsageError("the terms of the outcome name another rule set than is given here; name the one agreed on")
    if population.digest != terms.population:
        raise UsageError(
            "these are not the chips that the terms name; give the population that was agreed on",
            code="sealed.population",
        )
    plan = Plan(
        samples=terms.samples, seed=seed_of(agreement, beacon), flops_threshold=terms.flops_threshold,
        chip_flops_per_day=terms.chip_flops_per_day, period_days=terms.period_days,
        snapshot_rate_per_day=terms.snapshot_rate_per_day,
    )  # fmt: skip
    name = terms.inspection if not terms.attempt else f"{terms.inspection}-{terms.attempt + 1}"
    drawn = population.draw(plan.samples, plan.seed)
    registry.start_inspection(name, seed=plan.seed, plan=plan.to_json(), chips=drawn)
    given = Given(plan=plan, firmware=by.firmware, witness=by.witness.key, least=applied.least)
    setting = Setting(
        id=name, given=given, registry=registry, cache=by.cache, credentials=by.credentials,
        manufacturer=by.manufacturer, witness=by.witness, limits=Limits(),
        units=Units(registry.session, by.cache, name), farm=LocalFarm(), progress=say, transient=say,
        cancelled=lambda: False, regime=applied,
    )  # fmt: skip
    collected = Collected()
    read_logs.run(setting, collected)
    case = Case(
        inspection=terms.inspection, created_at=registry.inspection(name).created_at, plan=plan, firmware=by.firmware,
        manufacturer=by.manufacturer, witness=by.witness.key, population=population.text,
        logs=tuple(collected.logs),
        contradictions=tuple(registry.contradictions(log.chip.ueid) for log in collected.logs),
        rules=_content(by.rules), parties=_content(by.parties), policy=_content(by.policy), beacon=beacon,
    )  # fmt: skip
    check_agreed(case, agreement)
    registry.set_stage(name, STAGE)
    return case


def _content(path: Path | None) -> bytes:
    return b"" if path is None else path.read_bytes()
