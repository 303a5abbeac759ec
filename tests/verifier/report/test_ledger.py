"""The ledger: rows fill the period exactly, honest work is explained, and hidden work leaves room that is counted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chip_logs import SALT, LogBuilder, attempt, facts, make_device
from support.untrained_transcripts import write_transcript

from verifier.model.facts import Explanation, LogFacts, Opening, SnapshotFacts, TranscriptFacts
from verifier.registry import Chip
from verifier.report import ledger_totals
from verifier.report.ledger import DAY_MS, ChipLedger, LedgerPolicy, Point, Row, account, fill, points
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tokens import Verified
from weighbridge.core.digests import Leaf
from weighbridge.core.errors import ChipError, UsageError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.transcript_facts import open_confined

LEAVES: list[Leaf] = [(8, b"a" * 32)]
HOUR = 3_600_000
KINDS = ("boot", "idle", "draft", "snapshot", "other", "head")


def at(ms: int, kind: Any, run: str | None = None, **more: int) -> Point:
    fields = {"boot": 1, "index": 1, "uptime_ms": ms} | more
    return Point(time_ms=ms, kind=kind, transcript=run, **fields)


def said(rows: list[Row]) -> list[tuple[int, str, str, float]]:
    return [(row.ms, row.category, row.basis, row.flops) for row in rows]


@settings(max_examples=400, deadline=None)
@given(
    found=st.lists(
        st.builds(
            Point,
            time_ms=st.integers(0, 50),
            uptime_ms=st.integers(0, 60),
            boot=st.integers(1, 3),
            index=st.integers(0, 5),
            kind=st.sampled_from(KINDS),
            transcript=st.sampled_from([None, "a", "b"]),
            done=st.integers(0, 40),
            kernels=st.integers(0, 3),
            counted=st.integers(0, 40),
        ),
        max_size=12,
    ),
    begin=st.integers(-20, 60),
    length=st.integers(0, 60),
    totals=st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 60)),
)
def test_rows_fill_the_period_exactly_whatever_a_log_says(
    found: list[Point], begin: int, length: int, totals: dict[str, int]
) -> None:
    """Law: rows follow each other without gap or overlap, from the first millisecond of the period to the last."""
    found.sort(key=lambda point: (point.time_ms, point.index))
    rows = fill(found, begin, begin + length, totals)
    assert sum(row.ms for row in rows) == length
    place = begin
    for row in rows:
        assert row.begin_ms == place
        assert row.ms > 0
        assert row.flops >= 0
        place = row.end_ms
    assert place == begin + length
    chip = ChipLedger(ueid=b"x", peak=1.0, rows=tuple(rows))
    assert sum(chip.ms(category) for category in ("explained", "idle", "exempt", "unexplained")) == length


def test_an_honest_run_is_explained_at_its_utilisation_and_its_end_at_the_same_pace() -> None:
    found = [
        at(0, "boot", index=0, uptime_ms=0),
        at(10, "draft", "run"),
        at(20, "snapshot", "run", done=100, kernels=5, counted=100),
        at(40, "snapshot", "run", done=300, kernels=15, counted=320),
        at(100, "idle"),
        at(120, "head"),
    ]
    rows = fill(found, -30, 120, {"run": 400})
    assert said(rows) == [
        (30, "idle", "off", 0.0),
        (10, "idle", "interrupts", 0.0),
        (10, "explained", "snapshots", 100.0),
        (20, "explained", "snapshots", 200.0),
        (10, "explained", "transcript", 100.0),  # what was left of it at ten a millisecond
        (50, "idle", "interrupts", 0.0),
        (20, "unexplained", "no snapshot fell here", 0.0),
    ]
    chip = ChipLedger(ueid=b"x", peak=1.0 * DAY_MS, rows=tuple(rows))
    assert chip.explained_flops == 400
    assert chip.unexplained_flops == 20 + 20  # hours without a snapshot, and what the counter has beyond the transcript
    assert chip.remainder_flops == 0.0  # a slow peak: the transcripts take all of it
    assert chip.to_json()["rows"][3]["utilisation"] == pytest.approx(10.0)


def test_work_between_two_snapshots_of_one_position_stays_in_the_counter() -> None:
    """An attacker who shows the same position twice and works on something else in between."""
    found = [
        at(0, "draft", "run"),
        at(10, "snapshot", "run", done=100, kernels=5, counted=100),
        at(20, "snapshot", "run", done=100, kernels=9, counted=700),
    ]
    chip = ChipLedger(ueid=b"x", peak=1.0, rows=tuple(fill(found, 0, 20, {})))
    assert chip.unexplained_flops == 600


def test_a_kernel_counter_that_stands_still_is_idle_time() -> None:
    found = [at(0, "snapshot", kernels=5, counted=7), at(30, "snapshot", kernels=5, counted=7)]
    assert said(fill(found, 0, 30, {})) == [(30, "idle", "counters", 0.0)]


@pytest.mark.parametrize(
    "second",
    [
        at(30, "snapshot", "run", done=200, kernels=1, counted=1),  # attached anew, at an unknown time
        at(30, "snapshot", "other", done=200, kernels=9, counted=300),
        at(30, "snapshot", None, kernels=9, counted=300),
        at(30, "head"),
        at(30, "other"),
    ],
)
def test_what_nothing_explains_is_unexplained(second: Point) -> None:
    first = at(0, "snapshot", "run", done=100, kernels=5, counted=100)
    (row,) = fill([first, second], 0, 30, {})
    assert (row.category, row.ms) == ("unexplained", 30)


def test_power_cuts_leave_time_of_which_nobody_knows_whether_the_chip_ran() -> None:
    found = [at(0, "idle"), at(100, "boot", boot=2, uptime_ms=5), at(130, "idle", boot=2)]
    assert said(fill(found, 0, 130, {})) == [
        (95, "unexplained", "when it lost power is not known", 0.0),
        (5, "idle", "off", 0.0),
        (30, "idle", "interrupts", 0.0),
    ]


def inspected(
    path: Path, manufacturer: CertificateAuthority, *, status: Any = "explained"
) -> tuple[LogFacts, SnapshotFacts, TranscriptFacts]:
    """A signed log of a boot, a draft, an event of the workload, and a snapshot an hour after the draft."""
    write_transcript(path / "run")
    transcript = open_confined(path / "run")
    log = LogBuilder(make_device(path / "chip", manufacturer)).boot()
    log.event("manifest-draft", transcript.draft_digest)
    log.event("epoch", bytes(32))
    log.time_ms += HOUR - 2000
    log.uptime_ms += HOUR - 2000
    index = log.snapshot(LEAVES, flops=1000, kernels=9)
    read = facts(log, manufacturer.certificate, chip=Chip(ueid=log.device.ueid, address="localhost:1"))
    verified = attempt(log.entries[index], manufacturer.certificate)
    assert isinstance(verified, Verified)
    run = TranscriptFacts(id=transcript.digest, opened=transcript)
    live = [(size, digest.hex()) for size, digest in LEAVES]
    snapshot = SnapshotFacts(
        chip=read.chip, index=index, verified=verified, drafts=[], transcript=run, status=status,
        explanation=Explanation(transcript_id=run.id, step=1, op=4), opening=Opening(salt=SALT, leaves=LEAVES),
        replayed=ReplayResult(verdict="match", steps=(0, 2), state="00", live=live, flops=800),
    )  # fmt: skip
    return read, snapshot, run


def test_a_signed_log_with_an_explained_snapshot(tmp_path: Path, manufacturer: CertificateAuthority) -> None:
    log, snapshot, run = inspected(tmp_path, manufacturer)
    assert [point.kind for point in points(log, [snapshot], [run])] == ["boot", "draft", "snapshot", "head"]
    chip = account(log, [snapshot], [run], period_days=1, peak=24_000.0)
    assert chip.period_ms == DAY_MS
    assert chip.ms("explained") == HOUR
    assert chip.ms("unexplained") == 1000  # from the snapshot to the reading of the log
    assert chip.explained_flops == 800
    assert chip.unexplained_flops == pytest.approx(200 + 1000 * 24_000 / DAY_MS)
    assert chip.remainder_flops == pytest.approx(24_000 - 800)


@pytest.mark.parametrize("status", ["unexplained", "mismatch", "unverified"])
def test_a_snapshot_that_nothing_explains_explains_no_time(
    status: str, tmp_path: Path, manufacturer: CertificateAuthority
) -> None:
    log, snapshot, run = inspected(tmp_path, manufacturer, status=status)
    chip = account(log, [snapshot], [run], period_days=1, peak=24_000.0)
    assert chip.ms("explained") == 0
    assert chip.ms("unexplained") == HOUR + 1000
    assert chip.unexplained_flops > 1000


def test_a_chip_whose_log_was_not_read_is_unexplained_and_an_exempt_one_exempt(
    tmp_path: Path, manufacturer: CertificateAuthority
) -> None:
    log, snapshot, run = inspected(tmp_path, manufacturer)
    dead = LogFacts(chip=log.chip, nonce=b"n" * 32, head=ChipError("dead"))
    assert account(dead, [], [], period_days=2, peak=1.0).ms("unexplained") == 2 * DAY_MS
    free = account(
        log, [snapshot], [run], period_days=2, peak=1.0, policy=LedgerPolicy(exempt=frozenset([log.chip.ueid.hex()]))
    )
    assert (free.ms("exempt"), free.remainder_flops, free.unexplained_flops) == (2 * DAY_MS, 0, 0)


def test_a_policy_out_of_range_is_refused() -> None:
    for wrong in ({"tolerated_share": 1.1}, {"confidence": 0.5}, {"confidence": 1.0}):
        with pytest.raises(UsageError, match="from 0 to 1"):
            LedgerPolicy(**wrong)


def chip(number: int, share: float) -> ChipLedger:
    cut = int(DAY_MS * share)
    rows = (
        Row(begin_ms=0, end_ms=cut, category="unexplained", basis="no snapshot fell here"),
        Row(begin_ms=cut, end_ms=DAY_MS, category="idle", basis="interrupts"),
    )
    return ChipLedger(ueid=bytes([number]), peak=10.0, rows=rows)


def test_the_fleet_is_bounded_with_confidence() -> None:
    found = ledger_totals.summary([chip(n, 0.05) for n in range(10)], population=100, peak=10.0, period_days=1.0)[
        "fleet"
    ]
    most = max(m for m in range(91) if math.comb(100 - m, 10) / math.comb(100, 10) > 0.05)
    assert found["chips_over_at_most"] == most == 24
    assert found["share_over_at_most"] == pytest.approx(1 - 0.05 ** (1 / 10))
    assert found["unexplained_flops_at_most"] == pytest.approx(10 * 0.5 + 10 * (24 + 0.1 * (90 - 24)))
    worse = ledger_totals.summary(
        [chip(n, 0.5 if n < 3 else 0.05) for n in range(10)], population=100, peak=10.0, period_days=1.0
    )["fleet"]
    assert worse["over_tolerated_share"] == 3
    assert worse["unexplained_flops_at_most"] > found["unexplained_flops_at_most"]


def test_chips_drawn_with_certainty_say_nothing_about_others() -> None:
    chips = [chip(0, 0.9), chip(1, 0.0)]
    found = ledger_totals.summary(chips, population=50, peak=10.0, period_days=1.0, certain=[b"\x00"])["fleet"]
    assert (found["sampled_at_random"], found["not_sampled"], found["over_tolerated_share"]) == (1, 48, 0)
    alone = ledger_totals.summary(chips[:1], population=50, peak=10.0, period_days=1.0, certain=[b"\x00"])
    assert alone["fleet"] is None
    assert alone["unexplained_flops"] == pytest.approx(9.0)
