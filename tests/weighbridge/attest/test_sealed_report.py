"""A sealed report is opened part by part, and shows nothing else than was committed to."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.attest.dsse import canonical
from weighbridge.attest.outcome_terms import OutcomeError
from weighbridge.attest.sealed_report import LEAVES, Part, SealedReport, verify_part
from weighbridge.core import merkle
from weighbridge.core.digests import cbor

SALT = bytes(range(32))
REPORT: dict[str, Any] = {"schema": "s", "chips": [{"ueid": "01"}, {"ueid": "02"}], "findings": [], "counts": {"w": 1}}
SEALED = SealedReport(REPORT, SALT)


def test_each_part_is_opened_alone() -> None:
    assert SEALED.names == ["chips/0", "chips/1", "counts", "schema"]
    for name in SEALED.names:
        part = Part.from_cbor(SEALED.open(name).to_cbor())
        assert part == SEALED.open(name)
        verify_part(SEALED.commitment, part)
    assert json.loads(SEALED.open("chips/1").content) == {"ueid": "02"}
    with pytest.raises(OutcomeError):
        SEALED.open("chips/2")


@pytest.mark.parametrize("report", [{"chips": [1], "chips/0": 2}, {"a": float("nan")}, {"a": "\ud800"}])
def test_a_report_that_could_be_opened_in_two_ways_or_has_no_json_is_not_sealed(report: dict[str, Any]) -> None:
    with pytest.raises(OutcomeError):
        SealedReport(report, SALT)


def test_long_lists_end_in_one_part() -> None:
    sealed = SealedReport({"findings": list(range(5000)), "chips": list(range(1024))}, SALT)
    assert len(sealed.names) == 2049
    assert json.loads(sealed.open("findings/1024-").content) == list(range(1024, 5000))
    with pytest.raises(OutcomeError):
        SealedReport({str(number): 0 for number in range(LEAVES + 1)}, SALT)


@pytest.mark.finding("outcome.part")
def test_another_content_is_caught() -> None:
    part = SEALED.open("counts")
    others = SealedReport(REPORT, b"o" * 32).open("counts")
    for each in (
        replace(part, content=canonical({"w": 0})),
        replace(part, name="counts2"),
        replace(part, name=""),
        replace(part, place=part.place + 1),
        replace(part, place=-1),
        replace(part, salt=bytes(32)),
        replace(part, salt=b""),
        replace(part, path=part.path[:-1]),
        replace(part, path=(*part.path, bytes(32))),
        replace(part, path=(b"", *part.path[1:])),
        others,
    ):
        with pytest.raises(OutcomeError) as caught:
            verify_part(SEALED.commitment, each)
        assert caught.value.reason == "outcome.part"
    for commitment in (b"", bytes(31), bytes(32)):
        with pytest.raises(OutcomeError):
            verify_part(commitment, part)


def test_a_guess_is_not_confirmed_by_commitment_or_other_parts() -> None:
    """A Verifier that guessed a section right cannot tell, unless it has the part's own salt."""
    part = SEALED.open("schema")
    guess = SEALED.open("counts")
    hashes = set(part.path) | {SEALED.commitment}
    for salt in (b"", bytes(32), part.salt):
        assert merkle.leaf_hash(cbor([salt, guess.name, guess.content])) not in hashes
    assert SealedReport(REPORT, b"o" * 32).commitment != SEALED.commitment
    assert len(SEALED.open("schema").path) == len(SealedReport({"schema": "s"}, SALT).open("schema").path)
    with pytest.raises(OutcomeError):
        SealedReport(REPORT, b"short")


@given(at=st.integers(0), value=st.integers(0, 255))
@settings(deadline=None)
def test_bytes_are_a_part_or_refused(at: int, value: int) -> None:
    """Law: from_cbor(data).to_cbor() == data, or data is refused; only the honest part verifies."""
    honest = SEALED.open("counts").to_cbor()
    data = bytearray(honest)
    data[at % len(data)] = value
    with suppress(OutcomeError):
        part = Part.from_cbor(bytes(data))
        assert part.to_cbor() == bytes(data)
        verify_part(SEALED.commitment, part)
        assert bytes(data) == honest
