"""Claims under rules or a calibration that a referee has not, and operations that crash its worker: no party loses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.disputed import STEP, Party, cheat, record
from support.recording_store import RecordingStore

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.execution.dispute import asking, moves
from weighbridge.execution.dispute.asking import Claim, Judgement, Traced
from weighbridge.execution.dispute.messages import Ruling, Shown, signed
from weighbridge.execution.dispute.refereeing import Referee
from weighbridge.execution.worker_process import Limits

KEYS = (SigningKey.generate(), SigningKey.generate())
OP = 21
LIMITS = Limits(2 << 30, 120)

CRASH = """
import os
from weighbridge.execution.dispute.tracing import Tracer

def crash(self, *rest):
    os.abort()  # as a kernel with a failed assertion

Tracer._perform = crash
"""


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Path:
    return recordings.get("disputed", record)


@pytest.fixture(scope="module")
def trees(run: Path) -> tuple[tuple[Traced, bytes], tuple[Traced, bytes]]:
    """What an honest party and a liar say, and show of the first leaf that differs."""
    parties = Party(run), cheat(run, OP)
    return tuple((each.tree()[0], each.tree(OP + 1)[0].opening or b"") for each in parties)  # type: ignore[return-value]


def _ruled(
    trees: tuple[tuple[Traced, bytes], tuple[Traced, bytes]], changes: dict[str, Any], *rules: str
) -> list[tuple[int, str, str]]:
    """Has a referee with a confined worker rule on both claims, made under other terms than the run's."""

    def judge(claim: Claim, opening: bytes) -> Judgement:
        return asking.judge(claim, opening, limits=LIMITS, op_rules=rules)

    said = [replace(told, terms=cbor(decode_cbor(told.terms) | changes)) for told, _ in trees]
    referee = Referee((KEYS[0].public, KEYS[1].public), SigningKey.generate(), judge=judge)
    asked = moves.challenge(said[0], STEP, own=True)
    referee.post(signed(referee.dispute.head, asked, KEYS[0]).data)
    referee.post(signed(referee.dispute.head, moves.answer(said[1], asked), KEYS[1]).data)
    for party, (_, opening) in enumerate(trees):
        referee.post(signed(referee.dispute.head, Shown(opening=opening), KEYS[party]).data)
    assert referee.ruling is not None
    assert isinstance(referee.ruling.content, Ruling)
    return [(party, verdict, code) for party, verdict, code, _ in referee.ruling.content.claims]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"rules": "ab" * 32}, "replay.rules.unknown"),
        ({"policy": "calibrated", "calibration": "ab" * 32}, "replay.calibration.unknown"),
    ],
)
def test_rules_or_a_calibration_that_the_referee_has_not_refute_no_party(
    trees: tuple[tuple[Traced, bytes], tuple[Traced, bytes]], changes: dict[str, Any], code: str
) -> None:
    """Under the terms in force the liar is found; under others, both parties would have to name them."""
    assert _ruled(trees, changes) == [(0, "undecided", code), (1, "undecided", code)]


def test_under_the_terms_in_force_the_liar_is_false(
    trees: tuple[tuple[Traced, bytes], tuple[Traced, bytes]],
) -> None:
    assert [each[:2] for each in _ruled(trees, {})] == [(0, "admissible"), (1, "false")]


def test_who_names_other_terms_alone_finds_no_dispute(trees: tuple[tuple[Traced, bytes], ...]) -> None:
    """An honest defender does not take over a challenger's terms: it answers without a record."""
    mine, theirs = trees[0][0], trees[1][0]
    for changes in ({"rules": "ab" * 32}, {"policy": "calibrated", "calibration": "ab" * 32}, {"seed": 8}):
        asked = moves.challenge(replace(theirs, terms=cbor(decode_cbor(theirs.terms) | changes)), STEP, own=True)
        assert moves.answer(mine, asked).record == b""


def test_an_operation_that_crashes_the_worker_leaves_both_claims_undecided(
    trees: tuple[tuple[Traced, bytes], tuple[Traced, bytes]], tmp_path: Path
) -> None:
    """The referee outlives it, and judges the next claim."""
    rules = tmp_path / "crash_rules.py"
    rules.write_text(CRASH)
    assert _ruled(trees, {}, str(rules)) == [(0, "undecided", "replay.worker"), (1, "undecided", "replay.worker")]
