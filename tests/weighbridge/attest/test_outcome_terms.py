"""Terms of an outcome have one encoding, and nothing else is read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drand_values import QUICKNET
from support.outcomes import TERMS

from weighbridge.attest.beacon import parse_info
from weighbridge.attest.outcome_terms import OutcomeError, OutcomeTerms, encode_beacon
from weighbridge.core.digests import cbor

_EDGES = st.lists(st.floats(1e-3, 1e30), max_size=8, unique=True).map(lambda each: tuple(sorted(each)))


@given(size=st.integers(1, 3), attempt=st.integers(0, 255), hours=_EDGES, speeds=_EDGES, plan=st.floats(1e-3, 1e30))
@settings(deadline=None)
def test_terms_come_back(
    size: int, attempt: int, hours: tuple[float, ...], speeds: tuple[float, ...], plan: float
) -> None:
    """Law: from_cbor(t.to_cbor()) == t."""
    terms = replace(TERMS, size=size, attempt=attempt, hours=hours, speeds=speeds, flops_threshold=plan)
    assert OutcomeTerms.from_cbor(terms.to_cbor()) == terms
    assert (terms.digest == TERMS.digest) == (terms == TERMS)


@given(at=st.integers(0), value=st.integers(0, 255), cut=st.integers(0))
@settings(deadline=None)
def test_bytes_are_terms_or_refused(at: int, value: int, cut: int) -> None:
    """Law: from_cbor(data).to_cbor() == data, or data is refused."""
    data = bytearray(TERMS.to_cbor())
    data[at % len(data)] = value
    for each in (bytes(data), bytes(data[: cut % len(data)]), bytes(data) + b"\x00"):
        with suppress(OutcomeError):
            assert OutcomeTerms.from_cbor(each).to_cbor() == each


@pytest.mark.parametrize(
    "changes",
    [
        {"inspection": ""}, {"inspection": "a b"}, {"inspection": b"a"}, {"attempt": -1}, {"attempt": 256},
        {"attempt": True}, {"size": 0}, {"size": True}, {"size": 4}, {"flops_threshold": 1}, {"period_days": 0.0},
        {"period_days": -1.0}, {"flops_threshold": float("inf")}, {"snapshot_rate_per_day": float("nan")},
        {"hours": (2.0, 1.0)}, {"hours": (1.0, 1.0)}, {"speeds": (1,)}, {"speeds": "1"}, {"hours": tuple(range(1, 99))},
        {"rules": b"r" * 32}, {"rule_count": 1}, {"rules": b"r" * 32, "rule_count": 17}, {"findings": b""},
        {"finding_count": 512}, {"prover": TERMS.verifier}, {"verifier": b"v"}, {"inspection_bits": 1.0},
    ],
)  # fmt: skip
@pytest.mark.finding("outcome.malformed")
def test_what_are_no_terms_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(OutcomeError) as caught:
        replace(TERMS, **changes)
    assert caught.value.reason == "outcome.malformed"
    raw = {name: list(value) if isinstance(value, tuple) else value for name, value in changes.items()}
    with pytest.raises(OutcomeError):
        OutcomeTerms.from_cbor(cbor({**cbor2.loads(TERMS.to_cbor()), **raw}))


BEACON = encode_beacon(parse_info(QUICKNET))
DRAWING = {"samples": 4, "population": b"p" * 32, "beacon": BEACON, "round": 1000}


@pytest.mark.parametrize("changes", [{}, {"beacon": b"", "round": 0}, {"samples": 16}])
def test_terms_of_a_draw_come_back(changes: dict[str, Any]) -> None:
    """Those without a draw keep their format, so that digests of earlier ones stay."""
    terms = replace(TERMS, **{**DRAWING, **changes})
    assert OutcomeTerms.from_cbor(terms.to_cbor()) == terms
    assert cbor2.loads(terms.to_cbor())["format"] == 2
    assert cbor2.loads(TERMS.to_cbor())["format"] == 1
    assert not cbor2.loads(TERMS.to_cbor()).keys() & DRAWING.keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": 0}, {"samples": 17}, {"samples": True}, {"population": b""}, {"population": "p" * 32},
        {"round": 0}, {"round": -1}, {"round": 1 << 53}, {"beacon": b""}, {"beacon": b"{}"}, {"beacon": b"["},
        {"beacon": BEACON + b" "}, {"beacon": BEACON.replace(b'"period":3', b'"period":4')}, {"beacon": b"9" * 5000},
        {"samples": 0, "population": b""},
    ],
)  # fmt: skip
@pytest.mark.finding("outcome.malformed")
def test_what_are_no_terms_of_a_draw_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(OutcomeError) as caught:
        replace(TERMS, **{**DRAWING, **changes})
    assert caught.value.reason == "outcome.malformed"
    whole = cbor2.loads(replace(TERMS, **DRAWING).to_cbor())
    for raw in ({**whole, **changes}, {**whole, "format": 1}, {**cbor2.loads(TERMS.to_cbor()), "format": 2}):
        with pytest.raises(OutcomeError):
            OutcomeTerms.from_cbor(cbor(raw))


CHOOSING = {"images": b"i" * 32, "machines": b"m" * 32, "examined": 2}


@pytest.mark.parametrize(
    "changes",
    [{}, {"images": b""}, {"machines": b"", "examined": 0}, {"examined": 0}, DRAWING, {**DRAWING, "images": b""}],
)
def test_terms_of_an_image_and_of_machines_come_back(changes: dict[str, Any]) -> None:
    """Those without keep their format, so that digests of earlier ones stay."""
    terms = replace(TERMS, **{**CHOOSING, **changes})
    assert OutcomeTerms.from_cbor(terms.to_cbor()) == terms
    assert cbor2.loads(terms.to_cbor())["format"] == 3
    assert not cbor2.loads(replace(TERMS, **DRAWING).to_cbor()).keys() & CHOOSING.keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"images": b"i" * 31}, {"images": "i" * 32}, {"machines": b"m"}, {"machines": b""}, {"examined": -1},
        {"examined": True}, {"examined": 1 << 17}, {"images": b"", "machines": b"", "examined": 0},
    ],
)  # fmt: skip
@pytest.mark.finding("outcome.malformed")
def test_what_are_no_terms_of_a_choice_is_refused(changes: dict[str, Any]) -> None:
    whole = cbor2.loads(replace(TERMS, **CHOOSING).to_cbor())
    for raw in ({**whole, **changes}, {**whole, "format": 2}, {**cbor2.loads(TERMS.to_cbor()), "format": 3}):
        with pytest.raises(OutcomeError):
            OutcomeTerms.from_cbor(cbor(raw))


def test_other_maps_are_refused() -> None:
    plain = cbor2.loads(TERMS.to_cbor())
    for each in ({**plain, "more": 1}, {**plain, "format": 2}, {k: v for k, v in plain.items() if k != "rules"}, []):
        with pytest.raises(OutcomeError):
            OutcomeTerms.from_cbor(cbor(each))
