"""Records of outcomes, and the starts that they are of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import strategies as st

from verifier.model.agreed_population import AgreedPopulation
from verifier.report import outcome as of_reports
from verifier.report import published_findings
from weighbridge.attest import outcome_values as values
from weighbridge.attest.manifest import SigningKey
from weighbridge.attest.outcome_agreement import Agreement, Side
from weighbridge.attest.outcome_terms import SIZE_CLASSES, OutcomeTerms
from weighbridge.attest.sealed_report import SealedReport
from weighbridge.attest.signed_outcome import sign


def _key(number: int) -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


PROVER, VERIFIER, WORKER = _key(1), _key(2), _key(3)
HOURS = (1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0)
FLOPS = tuple(10.0**exponent for exponent in range(3, 31, 3))
TERMS = OutcomeTerms(
    inspection="0123456789abcdef", attempt=0, size=1, leaves_after_s=3600, flops_threshold=3.0e6,
    chip_flops_per_day=1.0e6, period_days=2.0, snapshot_rate_per_day=1.0, speeds=(1.0e6,), hours=HOURS, flops=FLOPS,
    rules=b"", rule_count=0, findings=bytes(32), finding_count=300, prover=PROVER.public, verifier=VERIFIER.public,
    inspection_bits=10_000, year_bits=100_000,
)  # fmt: skip


@dataclass(frozen=True)
class Start:
    """One start of an inspection, as far as its worker.

    Attributes:
        agreement: What both sides have.
        secrets: What the worker got of Prover and Verifier.
        key: The worker's key.
    """

    agreement: Agreement
    secrets: tuple[bytes, bytes]
    key: SigningKey


def start(terms: OutcomeTerms = TERMS) -> Start:
    """Has two honest parties agree, with fresh randomness."""
    one, two = Side(terms, "prover", PROVER), Side(terms, "verifier", VERIFIER)
    two.take(one.commit())
    one.take(two.commit())
    agreement = one.agree(two.open())
    assert agreement == two.agree(one.open())
    return Start(agreement, (one.secret, two.secret), agreement.worker_key(one.secret, two.secret))


def drawing(population: AgreedPopulation, samples: int, **changes: Any) -> OutcomeTerms:
    """Returns terms of a sealed inspection that draws from some chips."""
    return replace(
        TERMS,
        **{
            "inspection": "sealed-1", "samples": samples, "population": population.digest,
            "findings": published_findings.digest(), "finding_count": len(published_findings.published()), **changes,
        },
    )  # fmt: skip


def terms_of(report: Mapping[str, Any], **changes: Any) -> OutcomeTerms:
    """Returns terms that fit a report."""
    plan, rules = report["plan"], report["rules"]
    groups = (report["draw"].get("detection") or {"groups": ()})["groups"]
    return replace(
        TERMS,
        **{name: plan[name] for name in ("flops_threshold", "chip_flops_per_day", "period_days")},
        snapshot_rate_per_day=plan["snapshot_rate_per_day"],
        speeds=tuple(sorted({float(each["chip_flops_per_day"]) for each in groups})),
        rules=b"" if rules is None else bytes.fromhex(rules["digest"]),
        rule_count=0 if rules is None else len(rules["rules"]),
        findings=published_findings.digest(),
        finding_count=len(published_findings.published()),
        **changes,
    )


@dataclass(frozen=True)
class Released:
    """A record that left, and all that was behind it.

    Attributes:
        start: Its start.
        sealed: The sealed report.
        record: The record.
        data: Its signed bytes.
    """

    start: Start
    sealed: SealedReport
    record: values.Outcome
    data: bytes


def release(report: Mapping[str, Any], missing: of_reports.Missing | None = None, **changes: Any) -> Released:
    """Does what a sealed worker would: agrees, seals the report, and signs the record of it."""
    terms = terms_of(report, **changes)
    begun = start(terms)
    sealed = SealedReport(report, os.urandom(32))
    bound = of_reports.Bound(terms=terms, nonce=begun.agreement.nonce, key=begun.key.public, sealed=sealed.commitment)
    record = of_reports.of_report(report, bound, missing)
    return Released(begun, sealed, record, sign(record, begun.key))


def outcome(
    statuses: Sequence[Sequence[values.SnapshotStatus]] = (("explained",), ("unexplained",), ()), **changes: Any
) -> values.Outcome:
    """Returns a record that has a form; what it says does not follow from anything."""
    chips = tuple(values.ChipOutcome(True, "unexplained" not in each, False, tuple(each)) for each in statuses)
    plain = values.Outcome(
        size=1, nonce=bytes(range(32)), key=WORKER.public, sealed=b"s" * 32, status="complete", population=8,
        drawn=len(chips), unverified=1, groups=(values.GroupOutcome("random", 0, 8, 3, 1),), chips=chips,
        violations=frozenset({0, 7, 511}), warnings=frozenset({300}), rules=("holds", "violated", "undecided"),
        hours=(1, 2, 0, values.NOT_STATED), flops=(1, 2, 3), chunks=0, unproven=100, replayed=2,
        derived=values.Derived(
            p=352_000_000, p_is="hypergeometric", p_proven=None, not_drawn=1, no_snapshot=2, unseen=648_000_000,
            verdict="findings",
        ),
    )  # fmt: skip
    return replace(plain, **changes)


def _of_class(size: int) -> st.SearchStrategy[values.Outcome]:
    room = SIZE_CLASSES[size]
    bytes32, count = st.binary(min_size=32, max_size=32), st.integers(0, (1 << 32) - 1)
    chip = st.builds(
        values.ChipOutcome,
        *[st.booleans()] * 3,
        st.lists(st.sampled_from(values.SNAPSHOT_STATUSES), max_size=room.snapshots // room.chips).map(tuple),
    )
    group = st.builds(values.GroupOutcome, st.sampled_from(values.GROUP_KINDS), st.integers(0, 255), *[count] * 3)
    share = st.none() | st.integers(0, values.BILLION)
    places = st.frozensets(st.integers(0, 511), max_size=5)
    return st.builds(
        values.Outcome, size=st.just(size), nonce=bytes32, key=bytes32, sealed=bytes32,
        status=st.sampled_from(values.RECORD_STATUSES), population=count, drawn=count, unverified=count,
        groups=st.lists(group, max_size=room.groups).map(tuple),
        chips=st.lists(chip, max_size=min(room.chips, 40)).map(tuple),
        violations=places, warnings=places,
        rules=st.lists(st.sampled_from(values.RULE_OUTCOMES), max_size=room.rules).map(tuple),
        hours=st.tuples(*[st.integers(0, 255)] * 4), flops=st.tuples(*[st.integers(0, 255)] * 3),
        chunks=st.integers(0, 255), unproven=st.integers(0, 255), replayed=st.integers(0, 255),
        derived=st.builds(
            values.Derived, p=share, p_is=st.sampled_from(values.BASES), p_proven=share, not_drawn=share,
            no_snapshot=share, unseen=share, verdict=st.sampled_from(values.VERDICTS),
        ),
    )  # fmt: skip


OUTCOMES = st.sampled_from(sorted(SIZE_CLASSES)).flatmap(_of_class)
