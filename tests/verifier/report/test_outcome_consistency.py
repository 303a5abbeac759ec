"""A record says what follows from it: an honest one passes, and each false or silent one is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from support.outcomes import OUTCOMES, Released, release, terms_of
from support.reported import build, collect

from verifier.report.outcome import Drawn
from verifier.report.outcome_consistency import check
from verifier.report.outcome_figures import of
from verifier.report.published_findings import place
from weighbridge.attest.outcome_values import NOT_STATED, ChipOutcome, GroupOutcome, Outcome, SnapshotStatus


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return build(collect(tmp_path_factory.mktemp("report")))


@pytest.fixture(scope="module")
def released(report: dict[str, Any]) -> Released:
    return release(report)


def found(record: Outcome, released: Released, due: list[int] | None = None) -> set[str]:
    drawn = None if due is None else [Drawn(False, each) for each in due]
    return {each.id for each in check(record, released.start.agreement.terms, drawn, None if due is None else 8)}


def careful(record: Outcome, released: Released) -> Outcome:
    """A worker that computes again what follows from what it falsified."""
    return replace(record, derived=of(record, released.start.agreement.terms))


def status(record: Outcome, chip: int, own: tuple[SnapshotStatus, ...], **changes: Any) -> Outcome:
    chips = list(record.chips)
    chips[chip] = replace(chips[chip], snapshots=own, **changes)
    return replace(record, chips=tuple(chips))


def test_an_honest_record_passes(released: Released) -> None:
    assert found(released.record, released, [1, 1, 0]) == set()
    assert released.record.unverified == 1


@pytest.mark.parametrize(
    "false",
    [
        lambda r: replace(r, unverified=0),
        lambda r: replace(r, drawn=4),
        lambda r: replace(r, population=1),
        lambda r: replace(r, population=9, unverified=9),
        lambda r: replace(r, chips=r.chips[:-1]),
        lambda r: replace(r, chips=(*r.chips, r.chips[0])),
        lambda r: replace(r, chips=(*r.chips[:-1], replace(r.chips[-1], certain=True))),
        lambda r: status(r, 1, ("unexplained",), verified=True),
        lambda r: status(r, 1, ("unverified",)),
        lambda r: status(r, 2, (), verified=True),
        lambda r: status(r, 0, ("unverified",)),
        lambda r: replace(r, replayed=0),
        lambda r: replace(r, replayed=3),
        lambda r: replace(r, chunks=101),
        lambda r: replace(r, unproven=101),
        lambda r: replace(r, violations=r.violations | {511}),
        lambda r: replace(r, rules=("holds",)),
        lambda r: replace(r, hours=(0, 0, 0, 0)),
        lambda r: replace(r, hours=(6, 6, 6, 6)),
        lambda r: replace(r, hours=(NOT_STATED, *r.hours[1:])),
        lambda r: replace(r, hours=(7, *r.hours[1:])),
        lambda r: replace(r, flops=(NOT_STATED, *r.flops[1:])),
        lambda r: replace(r, flops=(1, 2, 11)),
        lambda r: replace(r, groups=(GroupOutcome("random", 0, 8, 3, 1),)),
        lambda r: replace(r, groups=(GroupOutcome("random", 9, 8, 3, 1),)),
        lambda r: replace(r, violations=r.violations | {place("outcome.withheld")}),
    ],
)
@pytest.mark.finding("outcome.inconsistent")
def test_what_does_not_follow_is_caught_however_careful_the_worker(
    released: Released, false: Callable[[Outcome], Outcome]
) -> None:
    record = false(released.record)
    assert "outcome.inconsistent" in found(record, released)
    if not record.groups and record.drawn <= record.population:
        assert "outcome.inconsistent" in found(careful(record, released), released)


@pytest.mark.parametrize("name", ["p", "p_proven", "not_drawn", "no_snapshot", "unseen", "p_is", "verdict"])
def test_each_figure_that_follows_is_computed_again(released: Released, name: str) -> None:
    figures = released.record.derived
    value = getattr(figures, name)
    other = abs(value - 1000) if isinstance(value, int) else {"p_is": "strata", "verdict": "clean"}[name]
    assert other != value
    assert found(replace(released.record, derived=replace(figures, **{name: other})), released) == {
        "outcome.inconsistent"
    }


def test_groups_of_a_draw_are_compared(released: Released) -> None:
    terms = replace(released.start.agreement.terms, speeds=(1.0e6,))
    plain = released.record
    right = (GroupOutcome("random", 0, 5, 2, 1), GroupOutcome("random", 0, 3, 1, 0))
    honest = replace(plain, groups=right)
    honest = replace(honest, derived=of(honest, terms))
    assert honest.derived.p_is == "strata"
    assert check(honest, terms) == []
    for groups in (
        (GroupOutcome("random", 0, 5, 2, 0), GroupOutcome("random", 0, 3, 1, 0)),
        (GroupOutcome("random", 0, 5, 2, 1), GroupOutcome("random", 0, 2, 1, 0)),
        (GroupOutcome("random", 0, 5, 1, 1), GroupOutcome("random", 0, 3, 1, 0)),
        (GroupOutcome("random", 0, 5, 0, 1), GroupOutcome("random", 0, 3, 3, 0)),
        (*right, GroupOutcome("certain", 0, 1, 1, 0)),
        (*right, GroupOutcome("silent", 0, 1, 0, 0)),
        (*right, GroupOutcome("certain", 0, 0, 1, 1)),
    ):
        false = replace(plain, groups=groups)
        false = replace(false, derived=of(false, terms))
        assert {each.id for each in check(false, terms)} == {"outcome.inconsistent"}


@pytest.mark.finding("outcome.status.missing")
def test_dropped_statuses_are_caught(released: Released) -> None:
    """The Verifier has read in the chips' logs how many snapshots are due."""
    dropped = status(released.record, 1, (), verified=True)
    dropped = replace(dropped, violations=frozenset(), warnings=frozenset())
    dropped = careful(dropped, released)
    assert found(dropped, released) == set()  # nothing in the record itself contradicts it
    assert found(dropped, released, [1, 1, 0]) == {"outcome.status.missing"}
    assert found(released.record, released, [1, 1]) == {"outcome.status.missing"}


@pytest.mark.parametrize(("why", "severity"), [("withheld", "violation"), ("late", "warning"), ("aborted", "warning")])
@pytest.mark.finding("outcome.withheld")
@pytest.mark.finding("outcome.late")
@pytest.mark.finding("outcome.aborted")
def test_silence_about_a_snapshot_is_a_finding_and_lowers_p(
    report: dict[str, Any], released: Released, why: SnapshotStatus, severity: str
) -> None:
    """The Prover keeps the inputs of the one snapshot back that would show the run."""
    chips = [dict(each) for each in report["chips"]]
    chips[1]["snapshots"] = [{**chips[1]["snapshots"][0], "status": "unverified"}]
    silent = {
        **report,
        "chips": chips,
        "findings": [],
        "probability": {**report["probability"], "inputs": {**report["probability"]["inputs"], "w": 2}},
    }
    key = (chips[1]["ueid"], chips[1]["snapshots"][0]["index"])
    withheld = release(silent, {key: why})
    (finding,) = check(withheld.record, withheld.start.agreement.terms)
    assert (finding.id, finding.severity) == (f"outcome.{why}", severity)
    assert withheld.record.unverified == 2
    assert withheld.record.derived.p == 0  # of the two involved chips no more than two were drawn
    assert (released.record.derived.p or 0) > 0
    claimed = careful(replace(withheld.record, unverified=1), withheld)
    assert "outcome.inconsistent" in found(claimed, withheld)
    unsaid = replace(withheld.record, violations=frozenset(), warnings=frozenset())
    assert "outcome.inconsistent" in found(careful(unsaid, withheld), withheld)


def test_silent_chips_that_are_called_drawn_with_certainty_are_caught(released: Released) -> None:
    """They are no part of w: a dishonest worker moves those that would have shown the run out of the sample."""
    terms = replace(released.start.agreement.terms, speeds=(1.0e6,))
    chips = (*released.record.chips[:2], replace(released.record.chips[2], certain=True))
    groups = (GroupOutcome("random", 0, 7, 2, 0), GroupOutcome("silent", 0, 1, 0, 0))
    moved = replace(released.record, chips=chips, drawn=2, population=7, unverified=0, groups=groups)
    moved = replace(moved, derived=of(moved, terms))
    assert check(moved, terms) == []  # all of it follows
    due = [Drawn(False, 1), Drawn(False, 1), Drawn(False, 0)]
    assert {each.subject for each in check(moved, terms, due, 8)} == {"draw: C", "chips drawn with certainty"}


def test_terms_that_no_formula_takes_are_a_finding(released: Released) -> None:
    terms = replace(
        released.start.agreement.terms, flops_threshold=5e-324, chip_flops_per_day=1.7e308, period_days=1e300, hours=()
    )
    said = check(replace(released.record, hours=(0, 0, 0, 0)), terms)
    assert all(each.id in ("outcome.inconsistent", "outcome.terms") for each in said)
    assert said


def test_a_record_without_an_end_says_nothing_more(released: Released) -> None:
    """A worker that calls its outcome late and tells it all the same uses the status to say more."""
    for late in (
        replace(released.record, status="late"),
        careful(replace(released.record, status="withheld"), released),
    ):
        assert {"outcome.inconsistent", f"outcome.{late.status}"} <= found(late, released)


@pytest.mark.finding("outcome.rerun")
def test_earlier_starts_are_named(report: dict[str, Any]) -> None:
    again = release(report, attempt=2)
    (finding,) = check(again.record, again.start.agreement.terms)
    assert (finding.id, finding.severity, finding.evidence["attempt"]) == ("outcome.rerun", "warning", 2)


@pytest.mark.finding("outcome.terms")
def test_terms_of_another_list_are_not_read_with_this_one(report: dict[str, Any], released: Released) -> None:
    terms = terms_of(report)
    for other in (replace(terms, findings=bytes(32)), replace(terms, size=2)):
        assert [each.id for each in check(released.record, other)] == ["outcome.terms"]


@given(record=OUTCOMES)
@settings(max_examples=60, deadline=None)
def test_any_record_is_judged_without_an_error(released: Released, record: Outcome) -> None:
    """Law: whatever values a record has, the check returns findings."""
    terms = replace(released.start.agreement.terms, size=record.size)
    for each in (terms, replace(terms, speeds=(1.0, 2.0), rules=b"r" * 32, rule_count=len(record.rules) or 1)):
        assert all(one.id.startswith("outcome.") for one in check(record, each))


@given(record=OUTCOMES)
@settings(max_examples=40, deadline=None)
def test_any_record_whose_ranges_fit_is_judged_without_an_error(released: Released, record: Outcome) -> None:
    """As before, of records that get as far as p."""
    terms = replace(released.start.agreement.terms, size=record.size, hours=())
    chips = tuple(ChipOutcome(False, False, False, each.snapshots) for each in record.chips)
    fitting = replace(
        record, population=len(chips) + record.population % 5000, drawn=len(chips), groups=(), rules=(), chips=chips,
        unverified=sum(not {"mismatch", "unexplained"} & set(each.snapshots) for each in chips), chunks=3, unproven=99,
        violations=frozenset({1}), warnings=frozenset(), hours=(0, 0, 0, 0), flops=(0, 1, 2), replayed=1,
        status="complete",
    )  # fmt: skip
    assert all(
        one.subject.startswith(("derived", "finding")) or one.id != "outcome.inconsistent"
        for one in check(fitting, terms)
    )
