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
from verifier.registry import Chip
from verifier.stages.read_logs import snapshots_in
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.work import NONE, Work
from weighbridge.core.errors import Finding
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.run_facts import Amount, Repetition, RunFacts

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


def asked(log: LogFacts, snapshots: list[SnapshotFacts], plan: Plan, examined: Any = None) -> list[Finding]:
    return unexplained_work.check([unexplained_work.account(log, snapshots, plan, examined or {})], plan)


def counted(flops: int, **more: Any) -> RunFacts:
    """What the tapes of a whole run have."""
    return RunFacts(
        steps=9, flops={"init": 0, "step": flops, "edit": 0}, fixed=False, programs=(), operations=(), parameters=None,
        used=0, seen=0, **more,
    )  # fmt: skip


def works(unexplained: list[float], **each: str) -> list[unexplained_work.ChipWork]:
    """Chips that did so much that nothing explains."""
    return [
        unexplained_work.ChipWork(
            chip=Chip(ueid=bytes([number]) * 17, address="localhost:1", **each),
            done=Work(flops=round(flops)),
            sessions=1,
            peak=1.0,
            explained=0.0,
        )
        for number, flops in enumerate(unexplained, 1)
    ]


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
    (found,) = asked(read(many(device, 30, flops=10**8), manufacturer), [], PLAN)
    assert (found.id, found.severity) == ("chip.work.unexplained", "warning")
    assert found.evidence["unexplained_flops"] == 3e9
    assert "in 30 sessions" in found.found


def test_what_is_below_the_smallest_run_accuses_nobody(device: Device, manufacturer: CertificateAuthority) -> None:
    log = read(many(device, 30, flops=10**7), manufacturer)
    assert asked(log, [], PLAN) == []
    large: dict[str, Any] = {"flops_threshold": 1e24}
    assert asked(read(many(device, 30, flops=10**8), manufacturer), [], replace(PLAN, **large)) == []


def test_a_declared_run_explains_its_work(
    device: Device, manufacturer: CertificateAuthority, honest: SnapshotFacts
) -> None:
    log = read(many(device, 1, flops=3 * 10**9), manufacturer)
    assert asked(log, [explained(honest, 3 * 10**9)], PLAN) == []
    # Evaluation beside it, and another session, are explained as far as the policy goes; a second run is not.
    more = read(many(device, 4, flops=3 * 10**9), manufacturer)
    (found,) = asked(more, [explained(honest, 3 * 10**9)] * 2, PLAN)
    assert found.evidence["unexplained_flops"] == 12e9 - 4.5e9


def test_the_rest_of_a_transcript_that_was_shown_is_explained(
    device: Device, manufacturer: CertificateAuthority, honest: SnapshotFacts
) -> None:
    log, seen = read(many(device, 1, flops=3 * 10**9), manufacturer), explained(honest, 10**6)
    assert honest.transcript is not None
    assert asked(log, [seen], PLAN) != []
    assert asked(log, [seen], PLAN, {honest.transcript.id: counted(3 * 10**9)}) == []


def test_what_a_resumption_did_again_is_explained_but_no_more_than_the_run(
    device: Device, manufacturer: CertificateAuthority, honest: SnapshotFacts
) -> None:
    seen, flops = explained(honest, 3 * 10**9), 3 * 10**9
    assert honest.transcript is not None
    again = Repetition(8, 0, Amount(0), Amount(flops))
    for times, claimed, found in ((2, 0, 1), (2, 1, 0), (5, 1, 1), (5, 90, 1)):
        log = read(many(device, times, flops=flops), manufacturer)
        examined = {honest.transcript.id: counted(flops, repetitions=(again,) * claimed)}
        assert len(asked(log, [seen], PLAN, examined)) == found


@pytest.mark.finding("chip.work.unexplained.many")
def test_a_run_that_is_spread_over_many_chips_is_caught() -> None:
    (found,) = unexplained_work.check(works([4e8, 3e8, 4e8], owner="a lab"), PLAN)
    assert (found.id, found.severity, found.subject) == ("chip.work.unexplained.many", "warning", "owner a lab")
    assert found.evidence["unexplained_flops"] == 11e8
    # What one chip alone is asked about is not told again.
    first, second = unexplained_work.check(works([9e9, 6e8, 6e8], owner="a lab"), PLAN)
    assert (first.id, second.evidence["unexplained_flops"]) == ("chip.work.unexplained", 12e8)


def test_chips_of_different_parties_are_not_summed() -> None:
    mixed = works([4e8, 4e8], owner="one") + works([4e8], owner="other", prover_address="p:1")
    assert unexplained_work.check(mixed, PLAN) == []
    (found,) = unexplained_work.check([*mixed, *works([4e8], owner="one", prover_address="p:1")], PLAN)
    assert found.subject == "Prover p:1, owner one, owner other"


def test_the_smallest_run_that_a_rule_is_about_counts() -> None:
    large: dict[str, Any] = {"flops_threshold": 1e24}
    plan = replace(PLAN, **large)
    assert unexplained_work.check(works([5e9]), plan) == []
    (found,) = unexplained_work.check(works([5e9]), plan, 4e9)
    assert found.id == "chip.work.unexplained"
    assert unexplained_work.check(works([5e8]), plan, 1.0) == []  # the policy's least of all


def test_unknown_work_counts_as_its_time_at_the_peak(device: Device, manufacturer: CertificateAuthority) -> None:
    log = read(many(device, 2, busy_ns=10**9, unknown_ns=10**9), manufacturer)
    assert asked(log, [], PLAN) == []  # the plan's own figure: one FLOP a second
    fast: dict[str, Any] = {"peak_flops": 1e9}
    (found,) = asked(log, [], replace(PLAN, **fast))
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
