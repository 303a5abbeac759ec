"""The disclosure ledger has every byte of a record once, and the book lets no start disclose more than it may."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.outcomes import OUTCOMES, TERMS, WORKER, outcome

from weighbridge.attest.disclosure import YEAR_MS, DisclosureBook, bits, capacity, ledger
from weighbridge.attest.outcome_record import encode
from weighbridge.attest.outcome_terms import OutcomeError
from weighbridge.attest.outcome_values import Outcome
from weighbridge.attest.signed_outcome import sign

DAY = 86_400_000
COST = bits(TERMS)


@given(record=OUTCOMES)
@settings(max_examples=40, deadline=None)
def test_every_byte_is_in_one_row_and_the_bits_are_those_of_the_terms(record: Outcome) -> None:
    """Whatever the record says: what it may disclose is known before anything is read."""
    terms = replace(TERMS, size=record.size)
    rows = ledger(record, terms)
    assert [each.offset for each in rows[1:]] == [each.offset + each.length for each in rows[:-1]]
    assert rows[0].offset == 0
    assert rows[-1].offset + rows[-1].length == len(encode(record)) + 64
    assert math.ceil(math.fsum(each.bits for each in rows)) == bits(terms)
    assert all(each.why for each in rows)
    assert math.fsum(each.bits for each in rows) <= 8 * (rows[-1].offset + rows[-1].length)


def test_the_ledger_names_each_field_of_the_signed_record() -> None:
    record = replace(outcome(), key=WORKER.public)
    rows = {each.field: each for each in ledger(record, TERMS) if each.field}
    data = sign(record, WORKER)
    assert data[rows["nonce"].offset :][:32] == record.nonce
    assert data[rows["sealed"].offset :][:32] == record.sealed
    assert rows["nonce"].bits == rows["derived"].bits == 0
    assert rows["snapshots"].bits == 128 * 3
    assert rows["violations"].bits == 301
    with pytest.raises(OutcomeError):
        ledger(record, replace(TERMS, size=2))


@given(st.integers(0, 16))
@settings(deadline=None)
def test_no_field_has_more_values_than_its_bits_say(rules: int) -> None:
    """Law: a rule answers with three values, so n rules disclose n log2 3 bits: a threshold halves a secret each."""
    terms = replace(TERMS, rule_count=rules, rules=b"r" * 32 if rules else b"")
    assert capacity(terms)["rules"][0] == pytest.approx(rules * math.log2(3))
    assert bits(terms) <= bits(replace(terms, hours=())) + 12


def book(path: Path, *, inspection_bits: int = 2 * COST, year_bits: int = 3 * COST) -> DisclosureBook:
    return DisclosureBook(path / "book", inspection_bits=inspection_bits, year_bits=year_bits)


@pytest.mark.finding("outcome.budget")
def test_a_verifier_that_repeats_inspections_runs_out_of_bits(tmp_path: Path) -> None:
    """It asks again and again, with a threshold that bisects what it wants to know."""
    left = [book(tmp_path).charge(replace(TERMS, inspection=f"i{number}"), number * DAY) for number in range(3)]
    assert left == [2 * COST, COST, 0]
    with pytest.raises(OutcomeError, match="the year's") as caught:
        book(tmp_path).charge(replace(TERMS, inspection="i3"), 200 * DAY)
    assert caught.value.reason == "outcome.budget"
    assert book(tmp_path).charge(replace(TERMS, inspection="i3"), YEAR_MS + DAY - 1) == 0  # the first is a year ago


def test_attempts_are_charged_whatever_became_of_them(tmp_path: Path) -> None:
    """Else a Prover would start again until it likes the outcome, and a Verifier until it has heard enough."""
    book(tmp_path).charge(TERMS, 0)
    for again in (TERMS, replace(TERMS, attempt=2)):
        with pytest.raises(OutcomeError, match="in the book"):
            book(tmp_path).charge(again, 1)
    book(tmp_path).charge(replace(TERMS, attempt=1), 1)
    with pytest.raises(OutcomeError, match="the inspection has"):
        book(tmp_path).charge(replace(TERMS, attempt=2), 2)
    with pytest.raises(OutcomeError, match="clock"):
        book(tmp_path).charge(replace(TERMS, inspection="other"), 0)
    assert (tmp_path / "book").stat().st_mode & 0o077 == 0


def test_the_smaller_of_both_parties_budgets_holds(tmp_path: Path) -> None:
    """Terms that allow much do not raise what a party's own book allows, nor the other way round."""
    for own, agreed in ((COST - 1, 10 * COST), (10 * COST, COST - 1)):
        for name in ("inspection_bits", "year_bits"):
            terms = replace(TERMS, **{"inspection_bits": 10 * COST, "year_bits": 10 * COST, name: agreed})
            limits = {"inspection_bits": 10 * COST, "year_bits": 10 * COST, name: own}
            with pytest.raises(OutcomeError) as caught:
                book(tmp_path, **limits).charge(terms, 0)
            assert caught.value.reason == "outcome.budget"


@pytest.mark.parametrize("damage", [b"\x00", b"\x84\x00", b"\x84\x00\x61a\x40\x20", b"\xff"])
def test_a_damaged_book_takes_no_more_starts(tmp_path: Path, damage: bytes) -> None:
    book(tmp_path).charge(TERMS, 0)
    with (tmp_path / "book").open("ab") as file:
        file.write(damage)
    with pytest.raises(OutcomeError, match="damaged"):
        book(tmp_path).charge(replace(TERMS, inspection="other"), 1)
