"""Imperfect inspections, against enumeration of what can go wrong."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.domain import DetectionDomainError
from analysis.reliability import shown_probability, with_soundness_error, worst_shown_probability

SHARE = st.floats(0, 1)


@given(SHARE, SHARE, SHARE, SHARE)
def test_equals_enumeration(w: float, replay: float, tampering: float, tampered: float) -> None:
    expected = 0.0
    for held, missed, blind, altered in itertools.product((True, False), repeat=4):
        weight = 1.0
        for happens, chance in ((held, w), (missed, replay), (blind, tampering), (altered, tampered)):
            weight *= chance if happens else 1 - chance
        expected += weight * ((not blind) if altered else (held and not missed))
    arguments = {"snapshot": w, "replay_missed": replay, "tampering_missed": tampering}
    found = float(shown_probability(tampered=tampered, **arguments))
    assert found == pytest.approx(expected, abs=1e-12)
    assert worst_shown_probability(**arguments) <= found + 1e-12


@given(SHARE, SHARE)
def test_miss_is_not_met_or_met_and_fooled(p: float, eps: float) -> None:
    assert 1 - with_soundness_error(probability=p, soundness_error=eps) == pytest.approx((1 - p) + p * eps)


def test_errors() -> None:
    with pytest.raises(DetectionDomainError, match="replay_missed"):
        shown_probability(snapshot=0.9, replay_missed=1.1, tampering_missed=0, tampered=0)
