"""A full report becomes a record that says its outcome and nothing of its content."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.outcomes import TERMS, WORKER, release, terms_of
from support.reported import build, collect

from verifier.report import outcome as outcomes
from verifier.report import outcome_consistency, signing
from verifier.report.document import SCHEMA
from verifier.report.earlier_reports import as_current
from verifier.report.inspectorate_policy import Policy
from verifier.report.outcome import Bound, Drawn, of_report, without_end
from verifier.report.outcome_figures import derive
from verifier.report.published_findings import digest, name, place, published
from verifier.report.regime import Regime
from verifier.rules import ruleset
from verifier.rules.ruleset import Signed
from weighbridge.attest.outcome_record import encode
from weighbridge.attest.outcome_terms import SIZE_CLASSES, OutcomeError
from weighbridge.attest.outcome_values import ChipOutcome, GroupOutcome
from weighbridge.attest.sealed_report import verify_part
from weighbridge.attest.signed_outcome import audit, sign, verify
from weighbridge.core.digests import record_digest
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.run_facts import Program, RunFacts

REAL = Path(__file__).parents[2] / "golden/report.dsse"
"""The report of a whole inspection, with a chip, a training, a Prover and replays."""

RULES = ruleset.parse(
    {
        "format": 1, "id": "example", "version": 1, "title": "Example",
        "rules": [
            {"id": "small", "title": "No run above 2000 FLOPs", "holds": "runs.all(r, r.flops < 2000.0)"},
            {"id": "tiny", "title": "No run above 500 FLOPs", "holds": "runs.all(r, r.flops < 500.0)"},
            {"id": "score", "title": "No good score", "holds": "runs.all(r, r.scores.maths < 0.5)"},
        ],
    }
)  # fmt: skip
REGIME = Regime(rules=Signed(RULES, ("a",), (b"a" * 32,)), policy=Policy())


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    return {**as_current(signing.open_report(REAL.read_bytes()).report), "schema": SCHEMA}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return build(collect(tmp_path_factory.mktemp("report")), REGIME)


def test_a_real_inspections_report_becomes_a_record_that_follows(real: dict[str, Any]) -> None:
    released = release(real)
    record = verify(released.data, released.start.agreement, released.start.key.public)
    assert record == released.record
    due = [Drawn(False, len(each["snapshots"])) for each in real["chips"]]
    assert outcome_consistency.check(record, released.start.agreement.terms, due) == []
    assert record.derived.verdict == real["verdict"] == "clean"
    assert record.derived.p == int(real["miss"]["p"] * 10**9)
    assert (record.population, record.drawn, record.unverified) == tuple(
        real["probability"]["inputs"][each] for each in "Csw"
    )
    assert [list(each.snapshots) for each in record.chips] == [
        [one["status"] for one in each["snapshots"]] for each in real["chips"]
    ]
    audit(released.data, released.start.agreement, *released.start.secrets)
    for part in released.sealed.names:
        verify_part(record.sealed, released.sealed.open(part))


def test_a_report_with_findings_and_rules_becomes_one(report: dict[str, Any]) -> None:
    released = release(report)
    record, terms = released.record, released.start.agreement.terms
    assert (
        outcome_consistency.check(record, terms, [Drawn(False, len(each["snapshots"])) for each in report["chips"]])
        == []
    )
    assert record.rules == ("holds", "violated", "undecided")
    assert {name(each) for each in record.violations} == {"snapshot.unexplained", "rule.violated"}
    assert {name(each) for each in record.warnings} == {"rule.undecided"}
    assert [each.snapshots for each in record.chips] == [("explained",), ("unexplained",), ()]
    assert record.derived.verdict == report["verdict"] == "findings"
    said = outcome_consistency.in_words(record, terms)
    assert json.loads(json.dumps(said))["violations"] == ["snapshot.unexplained", "rule.violated"] or said["warnings"]


def test_two_honest_runs_of_other_models_data_and_programs_leave_equal_records(tmp_path: Path) -> None:
    """Equal but for nonce, key, signature and commitment, and equal in length."""
    one = build(collect(tmp_path / "one", honest=True))
    collected = collect(tmp_path / "two", honest=True, text="another model, of other data")
    first = collected.snapshots[0]
    assert isinstance(first.replayed, ReplayResult)
    tapes = {"cd" * 32: {"kind": "step", "count": 1, "operations": 3000, "free_values": 0}}
    first.replayed = replace(first.replayed, flops=700, followed=77, logged=1, rounded=99_999, tapes=tapes)
    for each in collected.examined:
        collected.examined[each] = RunFacts(
            steps=2, flops={"init": 3, "step": 900, "edit": 0}, fixed=True,
            programs=(Program("cd" * 32, "step", first=1, count=2, operations=3000, flops=450),),
            operations=("aten.bmm.default", "aten.gelu.default"), parameters=100_000, used=8, seen=8,
        )  # fmt: skip
    two = build(collected)
    assert one["transcripts"] != two["transcripts"]
    assert one["ledger"]["explained_flops"] != two["ledger"]["explained_flops"]
    records = [release(each) for each in (one, two)]
    assert len({len(each.data) for each in records}) == 1
    plain = [replace(each.record, nonce=bytes(32), key=bytes(32), sealed=bytes(32)) for each in records]
    assert plain[0] == plain[1]
    assert encode(plain[0]) == encode(plain[1])
    assert records[0].sealed.commitment != records[1].sealed.commitment


def test_nothing_of_the_reports_content_is_in_the_record(real: dict[str, Any]) -> None:
    """No digest, name or identifier of the report, in bytes or in hexadecimal."""
    data = release(real).data
    words: set[str] = set()

    def collect_words(value: Any) -> None:
        match value:
            case dict():
                for key, each in value.items():
                    collect_words(key)
                    collect_words(each)
            case list():
                for each in value:
                    collect_words(each)
            case str() if len(value) >= 12:
                words.add(value)

    collect_words(real)
    assert len(words) > 50
    for word in words:
        assert word.encode() not in data
        if all(c in "0123456789abcdef" for c in word) and len(word) % 2 == 0:
            assert bytes.fromhex(word)[:8] not in data


def test_a_report_of_another_plan_or_other_rules_makes_no_record(report: dict[str, Any]) -> None:
    terms = terms_of(report)
    for changes in (
        {"flops_threshold": 1.0},
        {"period_days": 1.0},
        {"rules": b"r" * 32},
        {"rule_count": 2},
        {"findings": bytes(32)},
        {"finding_count": 3},
    ):
        bound = Bound(terms=replace(terms, **changes), nonce=bytes(32), key=WORKER.public, sealed=bytes(32))
        with pytest.raises(OutcomeError) as caught:
            of_report(report, bound)
        assert caught.value.reason == "outcome.terms"


def test_a_status_that_a_replay_gave_is_not_withheld(report: dict[str, Any]) -> None:
    chip = report["chips"][0]
    with pytest.raises(OutcomeError, match="could be verified"):
        release(report, {(chip["ueid"], chip["snapshots"][0]["index"]): "withheld"})


def test_an_inspection_without_an_end_leaves_a_record_of_the_same_length(real: dict[str, Any]) -> None:
    """It says what was known before the start: p is 0, and every drawn chip is one that the Prover chose."""
    released = release(real)
    terms = released.start.agreement.terms
    bound = Bound(terms=terms, nonce=released.record.nonce, key=released.start.key.public, sealed=bytes(32))
    chips = [Drawn(each.certain, len(each.snapshots)) for each in released.record.chips]
    for status in outcomes.SILENT:
        record = without_end(status, bound, chips, population=released.record.population, groups=released.record.groups)
        data = sign(record, released.start.key)
        assert len(data) == len(released.data)
        assert (record.derived.p, record.unverified) == (0, record.drawn)
        assert record.derived.unseen == 10**9
        found = outcome_consistency.check(record, terms, chips, released.record.population)
        assert [each.id for each in found] == [f"outcome.{status}"]
    with pytest.raises(OutcomeError):
        without_end("complete", bound, chips, population=8)


def _p(withheld: int, drawn: int = 60) -> int | None:
    """p of C = 1,000 chips, 50 of them involved, each of which holds a snapshot."""
    terms = replace(
        TERMS, flops_threshold=50.0, chip_flops_per_day=1.0, period_days=1.0, snapshot_rate_per_day=200.0, speeds=(1.0,)
    )
    kinds = [ChipOutcome(True, True, False, ("explained",))] * (drawn - withheld)
    kinds += [ChipOutcome(True, False, False, ("withheld",))] * withheld
    found = {
        groups: derive(
            terms, population=1000, drawn=drawn, unverified=withheld, chips=kinds, findings=(1, 0), rules=(), chunks=0,
            unproven=0, replayed=2, groups=(GroupOutcome("random", 0, 1000, drawn, withheld),) * groups,
        )
        for groups in (0, 1)
    }  # fmt: skip
    plain, strata = found[0], found[1]
    assert (plain.p_is, strata.p_is) == ("hypergeometric", "strata")
    assert plain.p is not None
    assert strata.p is not None
    assert abs(plain.p - strata.p) <= 1
    return plain.p


def test_withholding_only_the_hits_is_worth_what_w_says() -> None:
    """Of 1,000 chips 50 are involved and 60 drawn. The three that would show the run are withheld: p is Pr(J > 3)."""
    assert round((_p(3) or 0) / 1e9, 3) == 0.352
    naive = _p(0, drawn=57)  # as if the three had not been drawn
    assert round((naive or 0) / 1e9, 3) == 0.951
    assert _p(60) == 0


def test_a_class_without_room_is_refused_before_anything_is_signed(real: dict[str, Any]) -> None:
    many = {**real, "chips": [*real["chips"]] * SIZE_CLASSES[1].chips}
    with pytest.raises(OutcomeError) as caught:
        release(many)
    assert caught.value.reason == "outcome.overfull"
    assert len(release(many, size=2).data) == len(release(real, size=2).data)


def test_places_of_findings_do_not_change() -> None:
    """New identifiers come last: bits of records that are kept mean what they meant."""
    assert len(set(published())) == len(published()) >= 308
    assert published()[:2] == ("dispute.message", "dispute.party")
    assert place("no.such") == 0
    assert name(0) == name(9999) == "an identifier that the list lacks"
    assert [name(place(each)) for each in published()] == list(published())
    assert record_digest("published-findings/1", list(published()[:308])).hex()[:16] == "34081a029da3162f"
    assert digest() == record_digest("published-findings/1", list(published()))
