"""Does the record of an outcome say what follows from it, and what does only the sealed report support?

A record is a worker's word. What of it follows from other parts, from the terms, or from what the Verifier knows of the
draw and of chips' logs, is computed again here. The rest is listed (`ONLY_SEALED`), so that no reader takes it for
checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from verifier.report import outcome_figures, published_findings
from verifier.report.outcome import SILENT, STATUS_FINDINGS, Bound, Drawn, without_end
from weighbridge.attest.outcome_terms import OutcomeError, OutcomeTerms
from weighbridge.attest.outcome_values import BILLION, NOT_STATED, Derived, Outcome
from weighbridge.core.errors import Finding, Severity

FOLLOWS = (
    "p, p by proven time alone, their formula, and the bound on unseen violations with its terms: from C, s, w, the "
    "groups of the draw, the two shares, and the plan in the terms",
    "how many chips were drawn at random, and w: from the statuses of chips and snapshots",
    "the groups of the draw: their sums are those numbers",
    "the verdict: from findings, rules and chips",
    "that no chip counts as verified with a snapshot that is not explained, or whose log was not read",
    "that the classes of hours fit the period of as many chips",
)
ONLY_SEALED = (
    "that each snapshot has the status that a replay gave it, and each chip the one that its log gave it",
    "which snapshot, chip or run a finding is about, and that there are no others",
    "that each rule has the outcome that the facts give it, and what these facts are",
    "the classes of hours and of FLOPs, beyond their sum: the rows of the ledger",
    "the share of chunks that was not drawn, and that of unproven time",
    "which strata the groups are of: compare them with the record of the draw",
    "how many steps and segments were replayed, beyond that some were",
    "findings of severity info, and severities that a policy changed",
)
_SLACK = 1  # a billionth: machines may round the last bit of a float otherwise
_SHOWN = 8


def check(
    record: Outcome, terms: OutcomeTerms, due: Sequence[Drawn] | None = None, population: int | None = None
) -> list[Finding]:
    """Computes again what follows from a record.

    Args:
        record: Hostile, in its encoding's form.
        terms: What was agreed on; see `weighbridge.attest.signed_outcome.verify` for whether it is of them.
        due: Each drawn chip, in the order drawn, as the Verifier knows it from the draw and from its log.
        population: Chips that the random sample was drawn from (C), by the draw.

    Returns:
        A finding for each part that does not follow, and one for each kind of silence; none for an honest record of an
        inspection that came to its end in one start.
    """
    if (terms.findings, record.size) != (published_findings.digest(), terms.size):
        return [
            Finding(
                id="outcome.terms",
                message="the terms name another list of findings or another size class; read the record with its own",
                expected=f"{published_findings.digest().hex()}, size class {record.size}",
                found=f"{terms.findings.hex()}, size class {terms.size}",
                subject="terms",
            )
        ]
    # Each step computes with what the steps before it bounded: w of billions would take the memory of this process.
    wrong = [*_ranges(record, terms)] or [*_chips(record), *_groups(record)]
    wrong = wrong or [*_hours(record, terms), *_derived(record, terms), *_silence(record), *_end(record, terms)]
    return [*wrong, *_due(record, due, population), *_silent(record), *_rerun(terms)]


def _differs(subject: str, expected: object, found: object) -> Finding:
    return Finding(
        id="outcome.inconsistent",
        message="a part of the record does not follow from the others; do not rely on it, and have the report opened",
        expected=str(expected)[:300],
        found=str(found)[:300],
        subject=subject,
    )


def _ranges(record: Outcome, terms: OutcomeTerms) -> Iterator[Finding]:
    """Values that the encoding has room for, and the terms have not."""
    complete = record.status == "complete"
    stated = [*zip(("hours",) * 4, record.hours, (len(terms.hours),) * 4, strict=True)]
    stated += [*zip(("flops",) * 3, record.flops, (len(terms.flops),) * 3, strict=True)]
    for number, (name, value, most) in enumerate(stated):
        unsaid = value == NOT_STATED and (not complete or number == len(stated) - 1)
        if value > most and not unsaid:
            yield _differs(name, f"a class of the terms, 0 to {most}", value)
    for name, value, most in (
        ("chunks", record.chunks, 100),
        ("unproven", record.unproven, 100),
        ("replayed", record.replayed, 2),
        ("findings", max(record.violations | record.warnings, default=0), terms.finding_count),
        ("groups", max((each.speed for each in record.groups), default=0), max(0, len(terms.speeds) - 1)),
    ):
        if value > most:
            yield _differs(name, f"at most {most}", value)
    if record.groups and not terms.speeds:
        yield _differs("groups", "none: the terms name no speeds", len(record.groups))
    if len(record.rules) != terms.rule_count:
        yield _differs("rules", f"{terms.rule_count} rules", len(record.rules))
    if not 0 <= record.unverified <= record.drawn <= record.population:
        yield _differs("draw", "w <= s <= C", [record.unverified, record.drawn, record.population])


def _chips(record: Outcome) -> Iterator[Finding]:
    for number, chip in enumerate(record.chips):
        explained = all(each in outcome_figures.EXPLAINED for each in chip.snapshots)
        if chip.verified and not (chip.reachable and explained):
            yield _differs(f"chip {number}: verified", False, True)
    for what, again, stated in (
        ("s", sum(not each.certain for each in record.chips), record.drawn),
        ("w", outcome_figures.unverified_after_draw(record.chips), record.unverified),
    ):
        if again != stated:
            yield _differs(f"draw: {what}", again, stated)
    replayed = {"explained", "explained given collectives"}
    if not record.replayed and any(replayed & set(each.snapshots) for each in record.chips):
        yield _differs("replayed", "more than nothing", record.replayed)


def _groups(record: Outcome) -> Iterator[Finding]:
    """Compares the groups with the numbers of the draw, as a report's are compared."""
    certain = [each for each in record.chips if each.certain]
    if not record.groups:
        if certain:
            yield _differs("groups", "those of a draw with certain chips", "none")
        return
    inspected = sum(each.verified or outcome_figures.found_against(each) for each in certain)
    sums: dict[tuple[str, str], int] = Counter()
    for each in record.groups:
        for name in ("chips", "drawn", "unverified"):
            sums[each.kind, name] += getattr(each, name)
        whole = {"random": each.drawn, "certain": each.chips, "silent": 0}[each.kind]
        if not each.unverified <= each.drawn <= each.chips or each.drawn != whole:
            yield _differs("groups", "no more drawn than there are, nor unverified than drawn", each)
    wanted = {
        ("random", "chips"): record.population,
        ("random", "drawn"): record.drawn,
        ("random", "unverified"): record.unverified,
        ("certain", "chips"): inspected,
        ("certain", "unverified"): 0,
        ("silent", "chips"): len(certain) - inspected,
    }
    for (kind, name), value in wanted.items():
        if sums[kind, name] != value:
            yield _differs(f"groups: {kind} {name}", value, sums[kind, name])


def _hours(record: Outcome, terms: OutcomeTerms) -> Iterator[Finding]:
    """The hours of all categories are those of the period of all sampled chips: some values of the classes must be."""
    if NOT_STATED in record.hours or not terms.hours:
        return
    total = terms.period_days * 24 * len(record.chips)
    lower = sum(terms.hours[each - 1] if each else 0.0 for each in record.hours)
    open_ended = any(each == len(terms.hours) for each in record.hours)
    upper = float("inf") if open_ended else sum(terms.hours[each] for each in record.hours)
    if not lower <= total * (1 + 1e-9) or not total <= upper * (1 + 1e-9):
        yield _differs("hours", f"classes with a sum of {total:g}", [lower, upper])


def _derived(record: Outcome, terms: OutcomeTerms) -> Iterator[Finding]:
    try:
        again = outcome_figures.of(record, terms)
    except OutcomeError as error:
        yield error.finding(subject="terms")
        return
    for each in fields(Derived):
        one, other = getattr(again, each.name), getattr(record.derived, each.name)
        close = isinstance(one, int) and isinstance(other, int) and abs(one - other) <= _SLACK
        if one != other and not close:
            yield _differs(f"derived: {each.name}", one, other)


def _silence(record: Outcome) -> Iterator[Finding]:
    """The bitmaps have the findings that statuses say, and no others of these."""
    said = {each for chip in record.chips for each in chip.snapshots} | {record.status}
    for status, bits in (("withheld", record.violations), ("late", record.warnings), ("aborted", record.warnings)):
        if (published_findings.place(STATUS_FINDINGS[status]) in bits) != (status in said):
            yield _differs(f"finding {STATUS_FINDINGS[status]}", status in said, status not in said)


def _end(record: Outcome, terms: OutcomeTerms) -> Iterator[Finding]:
    """A record of an inspection without an end says what was known before the start, and nothing else."""
    if record.status == "complete":
        return
    bound = Bound(terms=terms, nonce=record.nonce, key=record.key, sealed=record.sealed)
    chips = [Drawn(each.certain, len(each.snapshots)) for each in record.chips]
    plain = without_end(record.status, bound, chips, population=record.population, groups=record.groups)
    if replace(record, derived=plain.derived) != plain:
        yield _differs("status", f"nothing that was not known before the start, as it is {record.status}", "more")


def _due(record: Outcome, due: Sequence[Drawn] | None, population: int | None) -> Iterator[Finding]:
    """A snapshot that its chip logged has a status, and the draw is the one that the Verifier knows.

    A chip that is called drawn with certainty is not in w, and a smaller s or C gives another p: all of that follows.
    """
    if population is not None and population != record.population:
        yield _differs("draw: C", population, record.population)
    if due is None:
        return
    stated = [len(each.snapshots) for each in record.chips]
    counted = [each.snapshots for each in due]
    if stated != counted:
        yield Finding(
            id="outcome.status.missing",
            message="chips or snapshots that were due have no status; treat those chips as withheld, and ask why",
            expected=f"{len(counted)} chips with {sum(counted)} snapshots: {counted}"[:300],
            found=f"{len(stated)} chips with {sum(stated)} snapshots: {stated}"[:300],
            subject="snapshots",
        )
    certain, called = [each.certain for each in due], [each.certain for each in record.chips]
    if certain != called and len(certain) == len(called):
        yield _differs("chips drawn with certainty", certain, called)


def _silent(record: Outcome) -> Iterator[Finding]:
    words: dict[str, tuple[str, Severity]] = {
        "withheld": ("the Prover did not show what it had committed to, or did not let the outcome go", "violation"),
        "late": ("it was not ready in the time that was declared before the start", "warning"),
        "aborted": ("it was begun and not brought to its end", "warning"),
    }
    for status in SILENT:
        chips = [number for number, each in enumerate(record.chips) if status in each.snapshots]
        count = sum(each.snapshots.count(status) for each in record.chips)
        if not count and record.status != status:
            continue
        message, severity = words[status]
        yield Finding(
            id=STATUS_FINDINGS[status],
            message=f"{message}; each such chip counts as one that the Prover chose, in w",
            expected="a status that a replay gave",
            found=f"{count} snapshots of {len(chips)} chips",
            subject="the inspection" if record.status == status else f"chips {chips[:_SHOWN]} of those drawn",
            severity=severity,
            evidence={"snapshots": count, "chips": len(chips)},
        )


def _rerun(terms: OutcomeTerms) -> Iterator[Finding]:
    if terms.attempt:
        yield Finding(
            id="outcome.rerun",
            message="there were earlier starts of this inspection; ask for their records, and why there were several",
            expected="one start",
            found=f"{terms.attempt} before this one",
            subject=f"inspection {terms.inspection}",
            severity="warning",
            evidence={"attempt": terms.attempt},
        )


def in_words(record: Outcome, terms: OutcomeTerms) -> dict[str, Any]:
    """Returns what a record says, JSON-compatible, with the names of findings."""
    figures = {
        each: None if (value := getattr(record.derived, each)) is None else value / BILLION
        for each in ("p", "p_proven", "not_drawn", "no_snapshot", "unseen")
    }
    return {
        "inspection": terms.inspection,
        "attempt": terms.attempt,
        "prover": terms.prover.hex(),
        "verifier": terms.verifier.hex(),
        "status": record.status,
        "verdict": record.derived.verdict,
        "C": record.population,
        "s": record.drawn,
        "w": record.unverified,
        **figures,
        "p_is": record.derived.p_is,
        "snapshots": dict(Counter(each for chip in record.chips for each in chip.snapshots)),
        "violations": [published_findings.name(each) for each in sorted(record.violations)],
        "warnings": [published_findings.name(each) for each in sorted(record.warnings)],
        "rules": list(record.rules),
        "hours": list(record.hours),
        "flops": list(record.flops),
    }
