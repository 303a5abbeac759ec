"""What an inspection concludes from what it collected: the ledger, what became of the rules, and the policy's say.

It is made once all checks have spoken, and only adds: rules look at facts that are there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from verifier.checks import works
from verifier.model.collected import Collected
from verifier.model.facts import Plan
from verifier.report import ledger_totals, miss_bound, run_facts_for_rules, work_ledger
from verifier.report.ledger import ChipLedger
from verifier.report.regime import Regime
from verifier.rules.judge import Judgement, findings, judge
from weighbridge.core.errors import Finding
from weighbridge.execution.run_facts import RunFacts


@dataclass(slots=True)
class Conclusion:
    """The parts of a report that are made at the end.

    Attributes:
        ledger: See `verifier.report.ledger_totals.summary`.
        facts: What rules may speak about.
        rules: The rule set, who signed it, and what became of each rule; None without one.
        policy: The inspectorate's policy, and which severities it changed.
        chunks: The chance that a false chunk was not drawn; see `verifier.report.miss_bound`.
        findings: All findings, with their final severities.
    """

    ledger: dict[str, Any]
    facts: dict[str, Any]
    rules: dict[str, Any] | None
    policy: dict[str, Any]
    chunks: float
    findings: list[Finding] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Returns the sections of the report."""
        return {
            "ledger": self.ledger,
            "facts": self.facts,
            "rules": self.rules,
            "policy": self.policy,
        }


def conclude(
    collected: Collected,
    plan: Plan,
    regime: Regime,
    *,
    population: int,
    certain: Collection[bytes] = (),
) -> Conclusion:
    """Makes up the ledger, applies the rules, and then the policy.

    Args:
        collected: The inspection, once it is judged; its findings are not changed.
        plan: What it set out to do.
        regime: Rules and policy.
        population: Chips in the registry (C).
        certain: UEIDs of the chips that were drawn with certainty.
    """
    chips = _ledger(collected, plan, regime)
    account = ledger_totals.summary(
        chips,
        population=population,
        peak=plan.chip_flops_per_day,
        period_days=plan.period_days,
        policy=regime.policy.ledger,
        certain=certain,
    )
    account["work"] = work_ledger.section(works(collected, plan), plan, regime.least)
    fleet = account["fleet"]
    facts = run_facts_for_rules.build(
        collected,
        chips,
        period_days=plan.period_days,
        registered=population,
        fleet_bound=None if fleet is None else fleet["unexplained_flops_at_most"],
    )
    judged = _judge(regime, facts, plan)
    found, changed = regime.policy.apply([*collected.findings, *(judged[1] if judged else [])])
    return Conclusion(
        ledger=account,
        facts=facts,
        rules=None if judged is None else judged[0],
        policy={**regime.policy.to_json(), "changed": changed},
        chunks=miss_bound.unchecked_chunks(collected.snapshots, collected.verified()),
        findings=found,
    )


def _ledger(collected: Collected, plan: Plan, regime: Regime) -> list[ChipLedger]:
    totals = {
        name: total
        for name, each in collected.examined.items()
        if isinstance(each, RunFacts) and (total := each.total) is not None
    }
    return ledger_totals.of(
        collected.logs,
        collected.snapshots,
        list(collected.transcripts.values()),
        period_days=plan.period_days,
        peak=plan.chip_flops_per_day,
        policy=regime.policy.ledger,
        totals=totals,
    )


def _judge(regime: Regime, facts: dict[str, Any], plan: Plan) -> tuple[dict[str, Any], list[Finding]] | None:
    if regime.rules is None:
        return None
    rules = regime.rules.rules
    judged: list[Judgement] = judge(rules, facts, plan.flops_threshold)
    section = {
        "id": rules.id,
        "version": rules.version,
        "title": rules.title,
        "digest": rules.digest,
        "signers": list(regime.rules.signers),
        "keys": [key.hex() for key in regime.rules.keys],
        "rules": [each.to_json() for each in judged],
    }
    return section, findings(rules, judged, facts)
