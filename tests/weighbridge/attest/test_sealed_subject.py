"""What a sealed dispute is about: a step of two transcripts, behind one commitment."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sealed_disputes import COURT

from weighbridge.attest.sealed_subject import SUBJECT_SIZE, Subject
from weighbridge.core.errors import UsageError

DIGESTS = st.binary(min_size=32, max_size=32)


@given(st.integers(0, (1 << 40) - 1), DIGESTS, DIGESTS, DIGESTS)
def test_a_subject_comes_back_from_what_opens_it(step: int, blind: bytes, one: bytes, other: bytes) -> None:
    made = Subject(step=step, blind=blind, challenger=one, defender=other)
    terms = replace(COURT.terms, subject=made.commitment)
    assert len(made.to_bytes()) == SUBJECT_SIZE
    assert Subject.opened(made.to_bytes(), terms) == made
    assert (made.transcript_of("challenger"), made.transcript_of("defender")) == (one, other)


@given(st.binary(max_size=2 * SUBJECT_SIZE), st.integers(0, SUBJECT_SIZE - 1), st.integers(1, 255))
def test_nothing_else_opens_a_subject(garbage: bytes, at: int, change: int) -> None:
    altered = bytearray(COURT.subject)
    altered[at] ^= change
    for data in (garbage, bytes(altered), COURT.subject[:-1], COURT.subject + b"\x00"):
        assert Subject.opened(data, COURT.terms) is None


def test_no_guess_is_confirmed_without_the_random_bytes() -> None:
    agreed = Subject.opened(COURT.subject, COURT.terms)
    assert agreed is not None
    assert replace(agreed, blind=os.urandom(32)).commitment != COURT.terms.subject


@pytest.mark.parametrize("changed", [{"step": -1}, {"step": 1 << 40}, {"blind": b""}, {"defender": bytes(31)}])
def test_a_subject_with_a_field_of_another_kind_is_none(changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(Subject(step=1, blind=bytes(32), challenger=bytes(32), defender=bytes(32)), **changed)
