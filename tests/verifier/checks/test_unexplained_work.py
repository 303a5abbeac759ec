"""Work over all sessions of a chip: declared runs pass; short sessions, or unknown work, that add up are caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.chip_logs import LogBuilder, facts

from firmware_sim.device import Device
from verifier.checks import unexplained_work
from verifier.model.facts import LogFacts, Plan, SnapshotFacts
from verifier.model.policies import SnapshotPolicy
from verifier.model.sessions import since_attached, tokens_of, work_of
from verifier.stages.read_logs import snapshots_in
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.work import NONE, Work
from weighbridge.execution.replay import ReplayResult

LEAF = [(8, b"a" * 32)]
PLAN = Plan(
    samples=1,
    seed=bytes(16),
    flops_threshold=1e9,
    chip_flops_per_day=86_400.0,
    period_days=30.0,
    snapshot_rate_per_day=1.0,
    snapshots=SnapshotPolicy(unexplained_flops=1e9, setup_flops=0.0),
)


def read(log: LogBuilder, manufacturer: CertificateAuthority) -> LogFacts:
    return facts(log, manufacturer.certificate)


def many(device: Device, count: int, **each: int) -> LogBuilder:
    """A boot and short sessions without a snapshot; each does the same."""
    log = LogBuilder(device).boot()
    for _ in range(count):
        log.attach().detach(kernels=10, **each)
    return log


def explained(honest: SnapshotFacts, flops: int) -> SnapshotFacts:
    """An honest snapshot whose replay counted so many FLOPs."""
    assert isinstance(honest.replayed, ReplayResult)
    return replace(honest, replayed=replace(honest.replayed, flops=flops))


@pytest.mark.finding("chip.work.unexplained")
def test_sessions_that_stay_small_are_summed(device: Device, manufacturer: CertificateAuthority) -> None:
    (found,) = unexplained_work.check(read(many(device, 30, flops=10**8), manufacturer), [], PLAN)
    assert (found.id, found.severity) == ("chip.work.unexplained", "warning")
    assert found.evidence["unexplained_flops"] == 3e9
    assert "in 30 sessions" in found.found


def test_what_is_below_the_smallest_run_accuses_nobody(device: Device, manufacturer: CertificateAuthority) -> None:
    log = read(many(device, 30, flops=10**7), manufacturer)
    assert unexplained_work.check(log, [], PLAN) == []
    large: dict[str, Any] = {"flops_threshold": 1e24}
    assert unexplained_work.check(read(many(device, 30, flops=10**8), manufacturer), [], replace(PLAN, **large)) == []


def test_a_declared_run_explains_its_work(
    device: Device, manufacturer: CertificateAuthority, honest: SnapshotFacts
) -> None:
    log = read(many(device, 1, flops=3 * 10**9), manufacturer)
    assert unexplained_work.check(log, [explained(honest, 3 * 10**9)], PLAN) == []
    # Evaluation beside it, and another session, are explained as far as the policy goes; a second run is not.
    more = read(many(device, 4, flops=3 * 10**9), manufacturer)
    (found,) = unexplained_work.check(more, [explained(honest, 3 * 10**9)] * 2, PLAN)
    assert found.evidence["unexplained_flops"] == 12e9 - 4.5e9


def test_the_rest_of_a_transcript_that_was_shown_is_explained(
    device: Device, manufacturer: CertificateAuthority, honest: SnapshotFacts
) -> None:
    log, seen = read(many(device, 1, flops=3 * 10**9), manufacturer), explained(honest, 10**6)
    assert honest.transcript is not None
    assert unexplained_work.check(log, [seen], PLAN) != []
    assert unexplained_work.check(log, [seen], PLAN, {honest.transcript.id: 3 * 10**9}) == []


def test_unknown_work_counts_as_its_time_at_the_peak(device: Device, manufacturer: CertificateAuthority) -> None:
    log = read(many(device, 2, busy_ns=10**9, unknown_ns=10**9), manufacturer)
    assert unexplained_work.check(log, [], PLAN) == []  # the plan's own figure: one FLOP a second
    fast: dict[str, Any] = {"peak_flops": 1e9}
    (found,) = unexplained_work.check(log, [], replace(PLAN, **fast))
    assert found.evidence["unexplained_flops"] == 2e9


def test_a_session_begins_where_the_workload_was_attached(device: Device, manufacturer: CertificateAuthority) -> None:
    log = LogBuilder(device).boot().attach().detach(flops=5).attach()
    log.does(busy_ns=7).snapshot(LEAF, kernels=3, flops=11)
    read_ = read(log, manufacturer)
    (snapshot,) = snapshots_in(read_)
    assert snapshot.work == since_attached(tokens_of(read_)) == Work(kernels=3, flops=11, busy_ns=7)
    assert work_of(read_) == Work(kernels=3, flops=16, busy_ns=7)


def test_earlier_firmware_says_nothing(device: Device, manufacturer: CertificateAuthority) -> None:
    log = LogBuilder(device, work=None).boot()
    log.snapshot(LEAF)
    read_ = read(log, manufacturer)
    assert snapshots_in(read_)[0].work is None
    assert work_of(read_) == NONE
