"""Does a report say what follows from it? Everything in it that follows from other parts of it is computed again.

A report that was altered after it was signed has no valid signature. This is for the one who does not want to believe
the Verifier's arithmetic, or who got the report without a signature.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from verifier.model.facts import EXPLAINED
from verifier.report import (
    extent,
    false_accusation,
    ledger_totals,
    miss_bound,
    proven_time,
    requested_logs,
    training,
    work_ledger,
)
from verifier.report.earlier_reports import as_current
from verifier.report.ledger import DAY_MS, ChipLedger, LedgerPolicy
from verifier.rules.judge import findings, judge
from verifier.rules.ruleset import RuleSet
from weighbridge.attest.dsse import DocumentError
from weighbridge.core.errors import Finding, WeighbridgeError

_CLOSE = 1e-9


def check(report: Mapping[str, Any], rules: RuleSet | None = None) -> list[Finding]:
    """Computes again what follows from the report's own inputs.

    Args:
        report: The content of a report; hostile.
        rules: The rule set that it should have applied, if the reader has it.

    Returns:
        A finding for each part that does not follow; none for an honest report.

    Raises:
        DocumentError: It is no report of this version (`report.malformed`).
    """
    found: list[Finding] = []
    parts: tuple[Callable[[Mapping[str, Any]], list[Finding]], ...] = (
        _counts, _probability, _observed, _replayed, _requested, _training, _miss, _accused, _ledger, _facts,
    )  # fmt: skip
    try:
        report = as_current(report)
        for part in parts:
            found += part(report)
        found += _rules(report, rules)
    except WeighbridgeError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise DocumentError(
            f"this is no report that this version can check ({type(error).__name__}); look at its schema",
            code="report.malformed",
        ) from None
    return found


def _differs(subject: str, expected: object, found: object) -> Finding:
    return Finding(
        id="report.inconsistent",
        message="a part of the report does not follow from the others; do not rely on it, and ask the Verifier why",
        expected=str(expected)[:300],
        found=str(found)[:300],
        subject=subject,
    )


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, numbers up to rounding."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, bool) or isinstance(other, bool) or not isinstance(one, int | float):
        return bool(one == other)
    return isinstance(other, int | float) and math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE * 1e-3)


def _counts(report: Mapping[str, Any]) -> list[Finding]:
    chips, findings = report["chips"], report["findings"]
    severities = Counter(each["severity"] for each in findings)
    snapshots = [snapshot for chip in chips for snapshot in chip["snapshots"]]
    again = {
        "sampled": len(chips),
        "verified": sum(chip["verified"] is True for chip in chips),
        **extent.silence(chips, report["draw"].get("certain", ())),
        "snapshots": len(snapshots),
        "explained": sum(each["status"] == "explained" for each in snapshots),
        "explained_given_collectives": sum(each["status"] == "explained given collectives" for each in snapshots),
        "violations": severities["violation"],
        "warnings": severities["warning"],
        "notes": severities["info"],
    }
    stated = report["counts"]
    out = _counted(report)
    out += [_differs(f"counts.{name}", value, stated[name]) for name, value in again.items() if stated[name] != value]
    verdict = extent.verdict(
        violations=severities["violation"],
        warnings=severities["warning"],
        undecided=len(extent.undecided(report)),
        replayed=extent.replayed_anything(chips, report["replayed"]),
        unverified=extent.unverified(chips),
    )
    return out if report["verdict"] == verdict else [*out, _differs("verdict", verdict, report["verdict"])]


def _counted(report: Mapping[str, Any]) -> list[Finding]:
    """Compares the chips that count as verified with what is stated about each, and those stated with those drawn.

    A Verifier who understates how many chips stayed silent raises p. It would have to call a chip verified whose log it
    did not read or whose snapshots nothing explains, or leave the chip out.
    """
    chips, draw = report["chips"], report["draw"]
    out = [
        _differs(f"chip {chip['ueid']}: verified", False, True)
        for chip in chips
        if chip["verified"] is True
        and not (chip["reachable"] is True and all(each["status"] in EXPLAINED for each in chip["snapshots"]))
    ]
    certain = set(draw.get("certain", ()))
    drawn = report["plan"]["samples"] if draw["kind"] == "given" else sum(each["drawn"] for each in draw["strata"])
    names = [chip["ueid"] for chip in chips]
    if len(set(names)) != len(names) or not certain <= set(names):
        out.append(_differs("chips", "each drawn chip once", "others"))
    if (stated := len(set(names) - certain)) != drawn:
        out.append(_differs("chips", f"{drawn} chips drawn at random", stated))
    return out


def _probability(report: Mapping[str, Any]) -> list[Finding]:
    section, plan, counts = report["probability"], report["plan"], report["counts"]
    inputs, worth = section["inputs"], report["draw"].get("detection")
    wanted = {
        "s": counts["sampled"] if worth is None else worth["drawn"],
        "w": counts["unverified_after_draw"],
        "C": counts["registered"] if worth is None else worth["chips"],
        "H": plan["flops_threshold"],
        "a": plan["chip_flops_per_day"],
        "T": plan["period_days"],
        "T_m": plan["period_days"],
        "f": plan["snapshot_rate_per_day"],
    }
    out = [
        _differs(f"probability.inputs.{name}", value, inputs[name])
        for name, value in wanted.items()
        if not _same(inputs[name], value)
    ]
    out += [] if worth is None else _drawn(report, worth)
    again: dict[str, float | None] = {
        "strata": None if worth is None else proven_time.defined(lambda: proven_time.strata(inputs, worth)),
        "eq1": proven_time.defined(lambda: proven_time.eq1(inputs)),
        "hypergeometric": proven_time.defined(lambda: proven_time.hypergeometric(inputs)),
    }
    proven = proven_time.section(report["chips"], inputs, worth)
    out += [
        _differs(f"probability.proven.{name}", value, section["proven"].get(name))
        for name, value in proven.items()
        if not _same(section["proven"].get(name), value)
    ]
    return out + [
        _differs(f"probability.{name}", value, section[name])
        for name, value in again.items()
        if not _same(section[name], value)
    ]


def _drawn(report: Mapping[str, Any], worth: Mapping[str, Any]) -> list[Finding]:
    """Compares what p of a draw rests on with its strata and with the chips that count as verified."""
    certain = set(report["draw"]["certain"])
    verified = [chip["ueid"] in certain for chip in report["chips"] if chip["verified"] is True]
    inspected = sum(
        chip["ueid"] in certain and (chip["verified"] is True or extent.found_against(chip)) for chip in report["chips"]
    )
    strata, groups = report["draw"]["strata"], worth["groups"]
    again = {
        "chips": sum(each["witnessed"] for each in strata),
        "drawn": sum(each["drawn"] for each in strata),
        "verified": verified.count(False),
        "unverified": report["counts"]["unverified_after_draw"],
        "certain": len(certain),
        "certain_verified": verified.count(True),
    }
    random = [each for each in groups if each["kind"] == "random"]
    sums = {
        "chips": sum(each["chips"] for each in random),
        "drawn": sum(each["drawn"] for each in random),
        "unverified": sum(each["unverified"] for each in groups),
        "certain": sum(each["chips"] for each in groups if each["kind"] != "random"),
    }
    out = [
        _differs(f"draw.detection.{name}", value, worth[name])
        for name, value in (*again.items(), *sums.items())
        if not _same(worth[name], value)
    ]
    stated = sum(each["drawn"] for each in groups if each["kind"] == "certain")
    return out if stated == inspected else [*out, _differs("draw.detection: groups", inspected, stated)]


def _observed(report: Mapping[str, Any]) -> list[Finding]:
    """Compares the observed chip-time with the ledger of the chips that count as verified."""
    verified = {chip["ueid"] for chip in report["chips"] if chip["verified"] is True}
    again = extent.observed(report["ledger"], verified, population=report["counts"]["registered"])
    return [
        _differs(f"observed.{name}", value, report["observed"].get(name))
        for name, value in again.items()
        if not _same(report["observed"].get(name), value)
    ]


def _replayed(report: Mapping[str, Any]) -> list[Finding]:
    """Compares how much was replayed with the replays, and the choice of segments with what the plan asks for."""
    plan, segments = report["plan"], report["evidence"].get("segments", ())
    rows = extent.replayed(report["chips"], report["transcripts"], segments)
    stated = {"replayed": report["replayed"], "replayed_in_all": report["replayed_in_all"]}
    again = {"replayed": rows, "replayed_in_all": extent.replayed_in_all(rows)}
    out = [_differs(name, value, stated[name]) for name, value in again.items() if not _same(value, stated[name])]
    asked = {"seed": plan["seed"], "random": plan["segments"]["random"], "largest": plan["segments"]["largest"]}
    for each in segments:
        chosen = each["selection"]
        out += [
            _differs(f"evidence.segments of {chosen['transcript']}: {name}", value, chosen[name])
            for name, value in asked.items()
            if not _same(value, chosen[name])
        ]
        drawn = sum("random" in one["reasons"] for one in chosen["chosen"])
        if drawn > chosen["random"]:
            out.append(_differs(f"evidence.segments of {chosen['transcript']}: drawn", chosen["random"], drawn))
    return out


def _requested(report: Mapping[str, Any]) -> list[Finding]:
    """Compares what is said of each Prover's rounding logs with the requests, and the requests with the findings."""
    return [
        _differs(subject, again, stated) for subject, again, stated in requested_logs.again(report) if again != stated
    ]


def _training(report: Mapping[str, Any]) -> list[Finding]:
    """Compares what is said of trainings with the plan, and with what is said of programs."""
    return [_differs(subject, again, stated) for subject, again, stated in training.again(report) if again != stated]


def _miss(report: Mapping[str, Any]) -> list[Finding]:
    stated = report["miss"]
    (chunks,) = (term["value"] for term in stated["terms"] if term["name"] == "chunks")
    if not 0 <= chunks <= 1:
        return [_differs("miss.terms.chunks", "a probability", chunks)]
    again = miss_bound.bound(report["probability"], chunks=chunks)
    return [
        _differs(f"miss.{name}", value, stated.get(name))
        for name, value in again.items()
        if not _same(stated.get(name), value)
    ]


def _accused(report: Mapping[str, Any]) -> list[Finding]:
    return [
        _differs(subject, expected, stated)
        for subject, expected, stated in false_accusation.again(report)
        if not _exactly(expected, stated)
    ]


def _exactly(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, probabilities up to rounding, however small they are."""
    if isinstance(one, float) and type(other) in (int, float):
        return math.isclose(one, other, rel_tol=_CLOSE)
    return bool(one == other)


def _ledger(report: Mapping[str, Any]) -> list[Finding]:
    stated = report["ledger"]
    out = []
    length = round(stated["period_days"] * DAY_MS)
    if not _same(stated["period_days"], report["plan"]["period_days"]):
        out.append(_differs("ledger.period_days", report["plan"]["period_days"], stated["period_days"]))
    chips = [ChipLedger.from_json(raw) for raw in stated["chips"]]
    for chip in chips:
        meet = all(a.end_ms == b.begin_ms for a, b in pairwise(chip.rows)) and all(row.ms > 0 for row in chip.rows)
        if chip.period_ms != length or not meet:
            out.append(_differs(f"ledger of chip {chip.ueid.hex()}", f"rows that fill {length} ms", chip.period_ms))
    policy = stated["policy"]
    again = ledger_totals.summary(
        chips,
        population=stated["population"],
        peak=stated["peak_flops_per_day"],
        period_days=stated["period_days"],
        policy=LedgerPolicy(**{**policy, "exempt": frozenset(policy["exempt"])}),
        certain=[bytes.fromhex(each) for each in stated["certain"]],
    )
    if (work := stated.get("work")) is not None:  # earlier reports do not say it
        rest = [max(0.0, each["at_most_flops"] - each["explained_flops"]) for each in work["chips"]]
        again["work"] = {
            **work,
            "chips": [{**each, "unexplained_flops": flops} for each, flops in zip(work["chips"], rest, strict=True)],
            "parties": [{**each, "unexplained_flops": _flops_of(work, each["chips"])} for each in work["parties"]],
            **work_ledger.totals(work["chips"], work["from_flops"]),
        }
    sampled = sorted(chip["ueid"] for chip in report["chips"])
    if sampled != sorted(chip["ueid"] for chip in stated["chips"]):
        out.append(_differs("ledger.chips", "the sampled chips", "other chips"))
    return out + [
        _differs(f"ledger.{name}", value, stated.get(name))
        for name, value in again.items()
        if not _same(stated.get(name), value)
    ]


def _flops_of(work: Mapping[str, Any], ueids: Sequence[str]) -> float:
    return math.fsum(each["unexplained_flops"] for each in work["chips"] if each["ueid"] in ueids)


def _facts(report: Mapping[str, Any]) -> list[Finding]:
    facts, ledger, counts = report["facts"], report["ledger"], report["counts"]
    wanted = {
        **{f"fleet.{name}": counts[name] for name in ("registered", "sampled", "verified")},
        "ledger.unexplained_flops": ledger["unexplained_flops"],
        "ledger.remainder_flops": ledger["remainder_flops"],
    }
    out = []
    for path, value in wanted.items():
        section, name = path.split(".")
        if not _same(facts[section][name], value):
            out.append(_differs(f"facts.{path}", value, facts[section][name]))
    return out


def _rules(report: Mapping[str, Any], rules: RuleSet | None) -> list[Finding]:
    stated = report["rules"]
    if rules is None:
        return []
    if stated is None or stated["digest"] != rules.digest:
        return [
            Finding(
                id="report.rules",
                message="the report did not apply this rule set; ask for an inspection under the rules in force",
                expected=f"{rules.id} version {rules.version}, {rules.digest}",
                found="no rules" if stated is None else str(stated["digest"])[:100],
                subject="rules",
            )
        ]
    judged = judge(rules, report["facts"], report["plan"]["flops_threshold"])
    again = [each.to_json() for each in judged]
    out = [
        _differs(f"rules.{one['id']}", one["outcome"], other.get("outcome"))
        for one, other in zip(again, stated["rules"], strict=True)
        if not all(_same(one[name], other[name]) for name in ("id", "holds", "outcome", "missing", "threshold"))
    ]
    wanted = findings(rules, judged, report["facts"])
    for kind in ("rule.violated", "rule.undecided", "rule.declaration.missing", "rule.declaration.unknown"):
        expected, named = (
            sorted(
                (str(evidence.get("rule")), str(evidence.get("run")), str(evidence.get("declaration")))
                for identifier, evidence in pairs
                if identifier == kind
            )
            for pairs in (
                [(each.id, each.evidence) for each in wanted],
                [(each["id"], each["evidence"]) for each in report["findings"]],
            )
        )
        if expected != named:
            out.append(_differs(f"findings of rules: {kind}", expected, named))
    return out
