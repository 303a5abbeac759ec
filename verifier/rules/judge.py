"""Applies a rule set to facts: which rules hold, which do not, and which could not be decided.

The 2H rule: snapshots of the first H FLOPs of a run prove nothing, since a permitted run looks the same until then. So
an inspection planned for H finds undeclared runs of 2H and more with its probability p, and a rule about runs of size R
is backed by p only if H is at most R/2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from analysis.early_detection import threshold_to_catch
from verifier.rules import declarations
from verifier.rules.errors import RuleError
from verifier.rules.expression import UndecidedError
from verifier.rules.ruleset import Rule, RuleSet
from verifier.rules.schema import FACTS, conform, instances, record
from weighbridge.core.errors import Finding

Outcome = Literal["holds", "violated", "undecided"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What became of one rule.

    Attributes:
        rule: The rule.
        outcome: Whether it holds.
        reason: Why it is undecided.
        missing: Facts that it names and that were not established, for one run at least.
        planned: H of the inspection, if known.
    """

    rule: Rule
    outcome: Outcome
    reason: str = ""
    missing: tuple[str, ...] = ()
    planned: float | None = None

    @property
    def backed(self) -> bool | None:
        """Whether p covers undeclared runs of the rule's size; None if it is about no size."""
        if self.rule.threshold is None or self.planned is None:
            return None
        return self.planned <= float(threshold_to_catch(run_flops=self.rule.threshold))

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data."""
        out: dict[str, Any] = {
            "id": self.rule.id,
            "title": self.rule.title,
            "holds": self.rule.holds,
            "outcome": self.outcome,
            "reason": self.reason,
            "missing": list(self.missing),
            "threshold": None,
        }
        if self.rule.threshold is not None:
            needed = float(threshold_to_catch(run_flops=self.rule.threshold))
            out["threshold"] = {
                "run_flops": self.rule.threshold,
                "h_needed": needed,
                "h_planned": self.planned,
                "backed": self.backed,
                "meaning": (
                    "a run is incriminating only after its first H FLOPs, so p for H covers undeclared runs of 2H and "
                    f"more: a rule about runs of {self.rule.threshold:.6g} FLOPs needs H of at most {needed:.6g}"
                ),
            }
        return out


def judge(rules: RuleSet, facts: Mapping[str, Any], planned: float | None = None) -> list[Judgement]:
    """Evaluates every rule; one that fails stops none.

    Args:
        rules: The rule set.
        facts: What was established, JSON-compatible, in the types of `schema.FACTS`.
        planned: H of the inspection, in FLOPs.

    Raises:
        FactsError: The facts do not conform.
    """
    conforming = declarations.understood(rules, conform(dict(facts), FACTS, record("")))
    found = list(instances(conforming, rules.facts, record("")))
    sizes: dict[tuple[str, str], int] = {}
    for name, fields in found:
        for field, value in fields.items():
            if isinstance(value, list | dict):
                sizes[name, field] = max(len(value), sizes.get((name, field), 0))
    sizes |= {("lists", name): len(texts) for name, texts in rules.lists.items()}
    return [_one(rules, rule, conforming, found, sizes, planned) for rule in rules.rules]


def _one(
    rules: RuleSet,
    rule: Rule,
    facts: dict[str, Any],
    found: list[tuple[str, dict[str, Any]]],
    sizes: Mapping[tuple[str, str], int],
    planned: float | None,
) -> Judgement:
    try:
        expression = rules.expression(rule, sizes)
    except RuleError as error:  # it was checked for usual sizes; these facts are larger
        return Judgement(rule=rule, outcome="undecided", reason=error.message, planned=planned)
    own = {name: list(texts) for name, texts in rules.lists.items()}
    given = {**facts, "lists": own} if own else facts
    if rule.threshold is not None:
        given = {**given, "threshold": rule.threshold}
    try:
        outcome: Outcome = "holds" if expression.evaluate(given) else "violated"
    except UndecidedError as error:
        needed = [(name, field) for name, field in expression.needs if field in rules.facts.get(name, {})]
        missing = [
            f"{name}.{field}".lstrip(".")
            for name, field in needed
            if any(kind == name and field not in fields for kind, fields in found)
        ]
        return Judgement(rule=rule, outcome="undecided", reason=str(error), missing=tuple(missing), planned=planned)
    return Judgement(rule=rule, outcome=outcome, planned=planned)


def findings(rules: RuleSet, judgements: list[Judgement], facts: Mapping[str, Any]) -> list[Finding]:
    """Returns a finding for each rule that does not hold, could not be decided, or is not backed by p.

    And one for each declaration that is missing in the facts, or not in the rule set's words.
    """
    subject = f"rule set {rules.id} version {rules.version}"
    out = declarations.findings(rules, facts)
    for each in judgements:
        evidence = {"rule": each.rule.id, "rule_set": rules.digest}
        about = f"{subject}: rule {each.rule.id}"
        if each.outcome == "violated":
            out.append(
                Finding(
                    id="rule.violated",
                    message=f"{each.rule.title}: the rule does not hold"
                    + (f"; {each.rule.remedy}" if each.rule.remedy else ""),
                    expected=each.rule.holds,
                    found="false",
                    subject=about,
                    severity=each.rule.severity,
                    evidence=evidence,
                )
            )
        elif each.outcome == "undecided":
            why = f"not established: {', '.join(each.missing)}" if each.missing else each.reason
            out.append(
                Finding(
                    id="rule.undecided",
                    message=f"{each.rule.title}: the facts do not decide whether the rule holds; this is not evidence "
                    "against the Prover, and the report is not clean",
                    expected=each.rule.holds,
                    found=why,
                    subject=about,
                    severity="warning",
                    evidence=evidence,
                )
            )
        if each.backed is False:
            assert each.rule.threshold is not None
            out.append(
                Finding(
                    id="rule.unbacked",
                    message="the inspection was planned for too large an H, so p says nothing about undeclared runs of "
                    "the size that this rule is about; plan with half of it (the 2H rule)",
                    expected=f"H of at most {float(threshold_to_catch(run_flops=each.rule.threshold)):.6g} FLOPs",
                    found=f"H = {each.planned:.6g} FLOPs",
                    subject=about,
                    severity="info",
                    evidence=evidence,
                )
            )
    return out
