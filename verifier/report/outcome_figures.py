"""What follows from the record of an outcome and its terms: p, the bound on what went unseen, and the verdict.

With w chips unverified after the draw was known p is Pr(S > w), S being how many drawn chips show the run, never the
chance that one of the other s - w does: a Prover who withholds only the hits leaves none of these. The arithmetic is
that of a report (`verifier.report.proven_time`, `verifier.report.miss_bound`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from analysis.detection import involved_chips
from analysis.domain import DetectionDomainError
from verifier.report import extent, miss_bound, proven_time
from weighbridge.attest.outcome_terms import OutcomeError, OutcomeTerms
from weighbridge.attest.outcome_values import BILLION, Basis, ChipOutcome, Derived, GroupOutcome, Outcome, RuleOutcome

EXPLAINED = frozenset({"explained", "explained given collectives"})
CONTRADICTED = frozenset({"mismatch", "unexplained"})
_ROUNDING = 1e-6
"""Of a billionth: a value is not rounded away from a whole number that float64 missed by less."""


def inputs(terms: OutcomeTerms, *, population: int, drawn: int, unverified: int) -> dict[str, Any]:
    """Returns what p rests on, in the form of a report's `probability.inputs`."""
    plan: dict[str, Any] = {
        "s": drawn, "w": unverified, "C": population, "H": terms.flops_threshold, "a": terms.chip_flops_per_day,
        "T": terms.period_days, "T_m": terms.period_days, "f": terms.snapshot_rate_per_day,
    }  # fmt: skip
    try:
        involved: int | None = int(
            involved_chips(
                flops_threshold=plan["H"], chip_flops_per_day=plan["a"], chips=population, run_days=plan["T"]
            )
        )
    except DetectionDomainError:
        involved = None
    return {**plan, "involved_chips": involved}


def worth(terms: OutcomeTerms, groups: Sequence[GroupOutcome], unverified: int) -> dict[str, Any] | None:
    """Returns groups in the form of a report's `draw.detection`; None of a plain draw.

    Raises:
        OutcomeError: A group has a speed that the terms lack.
    """
    if not groups:
        return None
    if any(each.speed >= len(terms.speeds) for each in groups):
        raise OutcomeError("a group of the record has a speed that its terms lack", code="outcome.terms")
    rows = [
        {
            "kind": each.kind, "chips": each.chips, "drawn": each.drawn, "unverified": each.unverified,
            "chip_flops_per_day": terms.speeds[each.speed],
        }
        for each in groups
    ]  # fmt: skip
    return {"groups": rows, "unverified": unverified}


def _derive(
    terms: OutcomeTerms,
    *,
    population: int,
    drawn: int,
    unverified: int,
    groups: Sequence[GroupOutcome],
    chips: Sequence[ChipOutcome],
    findings: tuple[int, int],
    rules: Sequence[RuleOutcome],
    chunks: int,
    unproven: int,
    replayed: int,
) -> Derived:
    """Computes what follows; the arguments are those of `Outcome`.

    Args:
        terms: The terms.
        population: C.
        drawn: s.
        unverified: w.
        groups: Groups of the draw.
        chips: Each drawn chip.
        findings: How many violations and warnings.
        rules: The outcome of each rule.
        chunks: In percent.
        unproven: In percent.
        replayed: 0 if nothing was.

    Raises:
        OutcomeError: A group has a speed that the terms lack, or their plan is one that no formula takes.
    """
    given = inputs(terms, population=population, drawn=drawn, unverified=unverified)
    strata = worth(terms, groups, unverified)
    section: dict[str, Any] = {
        "inputs": given,
        "strata": None if strata is None else _defined(lambda: proven_time.strata(given, strata)),
        "hypergeometric": _defined(lambda: proven_time.hypergeometric(given)),
        "eq1": _defined(lambda: proven_time.eq1(given)),
    }
    miss = miss_bound.bound(section, chunks=chunks / 100)
    terms_of = {each["name"]: each["value"] for each in miss["terms"]}
    share = min(1.0, unproven / 100)
    speed = population * given["a"]
    if strata is not None:
        speed = sum(each["chips"] * each["chip_flops_per_day"] for each in strata["groups"])
    left = max(0.0, given["H"] - share * speed * given["T"])
    period = (1 - share) * given["T"]
    proven = _defined(lambda: proven_time.probability({**given, "H": left, "T": period, "T_m": period}, strata))
    names: dict[str, Basis] = {"strata": "strata", "hypergeometric": "hypergeometric", "eq1": "eq1"}
    return Derived(
        p=_down(miss["p"]),
        p_is=names.get(miss["p_is"], "not defined"),
        p_proven=_down(proven),
        not_drawn=_up(terms_of["not_drawn"]),
        no_snapshot=_up(terms_of["no_snapshot"]),
        unseen=_up(miss["unseen_at_most"]),
        verdict=extent.verdict(
            violations=findings[0],
            warnings=findings[1],
            undecided=rules.count("undecided"),
            replayed=replayed > 0,
            unverified=sum(not each.verified for each in chips),
        ),
    )


def derive(terms: OutcomeTerms, **values: Any) -> Derived:
    """As `_derive`; of terms with a plan beyond all floats, which no honest party signs, it raises no other error.

    Raises:
        OutcomeError: A group has a speed that the terms lack, or their plan is one that no formula takes.
    """
    try:
        return _derive(terms, **values)
    except (ValueError, ArithmeticError):
        raise OutcomeError(
            "no p follows from the plan of the terms; agree on other terms", code="outcome.terms"
        ) from None


def of(record: Outcome, terms: OutcomeTerms) -> Derived:
    """Returns what follows from a record.

    Raises:
        OutcomeError: A group has a speed that the terms lack.
    """
    return derive(
        terms,
        population=record.population,
        drawn=record.drawn,
        unverified=record.unverified,
        groups=record.groups,
        chips=record.chips,
        findings=(len(record.violations), len(record.warnings)),
        rules=record.rules,
        chunks=record.chunks,
        unproven=record.unproven,
        replayed=record.replayed,
    )


def found_against(chip: ChipOutcome) -> bool:
    """Tells whether a violation was seen on a chip: that is no silence, and hides nothing."""
    return any(each in CONTRADICTED for each in chip.snapshots)


def unverified_after_draw(chips: Sequence[ChipOutcome]) -> int:
    """Returns w: of the chips drawn at random, those that neither verified nor showed a violation."""
    return sum(not each.certain and not each.verified and not found_against(each) for each in chips)


def _defined(compute: Any) -> float | None:
    try:
        value = compute()
    except DetectionDomainError:
        return None
    return None if value is None or not math.isfinite(value) else float(value)


def _down(value: float | None) -> int | None:
    return None if value is None else min(BILLION, max(0, math.floor(value * BILLION + _ROUNDING)))


def _up(value: float | None) -> int | None:
    return None if value is None else min(BILLION, max(0, math.ceil(value * BILLION - _ROUNDING)))
