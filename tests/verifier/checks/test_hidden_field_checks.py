"""Confidential boots hide what they declare, and open as the chip committed: honest logs pass, all else is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.chip_logs import LogBuilder, _parse, facts, make_device

from firmware_sim.device import Device
from verifier import checks
from verifier.checks import chip_counters, hidden_fields, provenance, unread_fields
from verifier.model.check_runner import Given, judge
from verifier.model.facts import LogFacts, Plan
from verifier.model.hidden_tokens import openings_of, openings_to, places, revealed
from verifier.model.reference_values import FirmwarePolicy
from verifier.model.sessions import work_of
from verifier.report import ledger
from verifier.stages.read_logs import snapshots_in
from weighbridge.attest.hidden_fields import hide
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tokens import HiddenBody, sign
from weighbridge.attest.work import NONE, Work
from weighbridge.core.digests import cbor

LEAF = [(8, b"a" * 32)]
PLAN = Plan(
    samples=1, seed=bytes(16), flops_threshold=1.0, chip_flops_per_day=1.0, period_days=1.0, snapshot_rate_per_day=1.0
)  # fmt: skip


def busy(device: Device, *, hiding: bool = True) -> LogBuilder:
    """Two boots, the second with a run that two snapshots are taken of, and a third that hides nothing."""
    log = LogBuilder(device, hiding=hiding).boot().attach().detach(kernels=2, flops=3).boot().attach()
    log.event("manifest-draft", b"d" * 32)
    log.snapshot(LEAF, kernels=5, flops=100)
    log.event("segment", b"s" * 32)
    log.snapshot(LEAF, kernels=9, flops=300)
    log.detach()
    log.hiding = False
    return log.boot().attach().detach(kernels=1)


DRAFT, SEGMENT, SNAPSHOT = 5, 7, 6
"""Places in it."""


def outside(log: LogBuilder, manufacturer: CertificateAuthority) -> LogFacts:
    return facts(log, manufacturer.certificate)


def inside(log: LogBuilder, manufacturer: CertificateAuthority, openings: dict[int, bytes] | None = None) -> LogFacts:
    given = log.openings if openings is None else openings
    return revealed(outside(log, manufacturer), openings_of(openings_to(given)))


def found(log: LogFacts) -> list[str]:
    return [each.id for each in hidden_fields.check(log)]


def judged(log: LogFacts) -> list[str]:
    """What all checks of a log say but those about firmware, which is none that is known here."""
    given = Given(plan=PLAN, firmware=FirmwarePolicy(), witness=None)
    said = judge(checks.LOG, log, given, subject="chip")
    assert not said.failed
    return sorted({each.id for each in said.findings if not each.id.startswith(("chip.firmware", "chip.options"))})


def test_an_honest_chip_passes_outside_and_inside(device: Device, manufacturer: CertificateAuthority) -> None:
    log = busy(device)
    plain = busy(device, hiding=False)
    usual = judged(outside(plain, manufacturer))
    assert found(outside(log, manufacturer)) == found(inside(log, manufacturer)) == []
    assert judged(inside(log, manufacturer)) == usual
    assert judged(outside(log, manufacturer)) == sorted([*usual, "snapshot.confidential"])


def test_a_session_knows_what_an_inspection_of_any_chip_knows(
    device: Device, manufacturer: CertificateAuthority
) -> None:
    hidden, plain = busy(device), busy(device, hiding=False)
    (one, two), (first, second) = snapshots_in(inside(hidden, manufacturer)), snapshots_in(outside(plain, manufacturer))
    for ours, theirs in ((one, first), (two, second)):
        assert ours.verified.token.body == theirs.verified.token.body
        assert (ours.drafts, ours.work, ours.index) == (theirs.drafts, theirs.work, theirs.index)
    assert one.drafts == [(DRAFT, b"d" * 32)]
    assert work_of(inside(hidden, manufacturer)) == work_of(outside(plain, manufacturer)) == Work(kernels=12, flops=303)


def test_outside_nothing_is_known_of_the_workload_and_nothing_is_excused(
    device: Device, manufacturer: CertificateAuthority
) -> None:
    log = outside(busy(device), manufacturer)
    snapshots = snapshots_in(log)
    assert [(each.confidential, each.drafts, each.work) for each in snapshots] == [(True, [], None)] * 2
    assert [each.id for each in provenance.check(snapshots[0])] == ["snapshot.confidential"]
    assert work_of(log) == Work(kernels=1)  # of the boot that hides nothing
    account = ledger.account(log, snapshots, [], period_days=20 / 86400, peak=1.0)
    plain = outside(busy(device, hiding=False), manufacturer)
    assert account.ms("explained") == 0
    assert account.ms("unexplained") >= ledger.account(
        plain, snapshots_in(plain), [], period_days=20 / 86400, peak=1.0
    ).ms("unexplained")


@pytest.mark.finding("snapshot.confidential")
def test_a_chip_without_a_snapshot_is_no_more_verified(device: Device, manufacturer: CertificateAuthority) -> None:
    log = LogBuilder(device, hiding=True).boot().attach().detach(flops=10**20)
    given = Given(plan=PLAN, firmware=FirmwarePolicy(), witness=None)
    for read, lost in ((outside(log, manufacturer), True), (inside(log, manufacturer), False)):
        assert [each.id for each in unread_fields.check(read)] == ["snapshot.confidential"] * lost
        assert (
            judge([each for each in checks.LOG if each.name == "unread_fields"], read, given, subject="").not_sampled
            == lost
        )
    assert unread_fields.check(inside(log, manufacturer, {})) == []  # `hidden_fields` says that all is withheld
    assert unread_fields.check(outside(LogBuilder(device).boot(), manufacturer)) == []


def test_work_that_is_hidden_is_counted_inside(device: Device, manufacturer: CertificateAuthority) -> None:
    log = LogBuilder(device, hiding=True).boot().attach().detach(flops=9)
    log.work = NONE
    log.attach()
    assert chip_counters.check(outside(log, manufacturer)) == []
    assert [each.id for each in chip_counters.check(inside(log, manufacturer))] == ["chip.counters.decreased"]


@pytest.mark.finding("chip.hidden.withheld")
@pytest.mark.parametrize("index", range(10))
def test_an_opening_that_is_withheld_is_told(device: Device, manufacturer: CertificateAuthority, index: int) -> None:
    log = busy(device)
    assert places(outside(log, manufacturer)) == list(range(10))
    read = inside(log, manufacturer, {place: data for place, data in log.openings.items() if place != index})
    (said,) = hidden_fields.check(read)
    assert (said.id, said.severity) == ("chip.hidden.withheld", "warning")
    assert said.subject == f"chip {device.ueid.hex()} entry {index}"
    assert set(read.unopened) == {index}


def _altered(log: LogBuilder) -> dict[int, bytes]:
    return {**log.openings, DRAFT: log.openings[DRAFT].replace(b"manifest-draft", b"manifest-crust")}


def _swapped(log: LogBuilder) -> dict[int, bytes]:
    return {**log.openings, DRAFT: log.openings[SEGMENT], SEGMENT: log.openings[DRAFT]}


def _of_another_boot(log: LogBuilder) -> dict[int, bytes]:
    """Says the same of the same place, in a boot that is not this one."""
    token = replace(busy(log.device, hiding=False).token("event", {"name": "x", "digest": bytes(32)}), index=DRAFT)
    return {**log.openings, DRAFT: hide(replace(token, boot_count=1))[1]}


@pytest.mark.finding("chip.hidden.mismatch")
@pytest.mark.parametrize("attack", [_altered, _swapped, _of_another_boot, lambda log: {**log.openings, DRAFT: b"x"}])
def test_a_false_opening_is_caught(
    device: Device, manufacturer: CertificateAuthority, attack: Callable[[LogBuilder], dict[int, bytes]]
) -> None:
    log = busy(device)
    read = inside(log, manufacturer, attack(log))
    (said,) = hidden_fields.check(read)
    assert (said.id, said.severity) == ("chip.hidden.mismatch", "violation")
    assert DRAFT in read.unopened
    assert isinstance(read.entries[DRAFT].verified.token.body, HiddenBody)  # type: ignore[union-attr]


@pytest.mark.finding("chip.hidden.mismatch")
def test_openings_of_another_chip_are_caught(
    device: Device, manufacturer: CertificateAuthority, tmp_path: Path
) -> None:
    other = busy(make_device(tmp_path, manufacturer))
    read = inside(busy(device), manufacturer, other.openings)
    assert found(read) == ["chip.hidden.mismatch"]
    assert set(read.unopened) == set(range(10))


@pytest.mark.finding("chip.hidden.undeclared")
@pytest.mark.parametrize("kind", ["event", "own", "snapshot", "boot"])
def test_a_chip_that_hides_without_saying_so_is_caught(
    device: Device, manufacturer: CertificateAuthority, kind: str
) -> None:
    """Opened or not: no ordinary inspection could have seen it."""
    log = LogBuilder(device).boot()
    log.hiding, log.options = True, {"confidential": False}
    if kind == "snapshot":
        log.snapshot(LEAF)
    elif kind == "boot":
        log.boot()
    else:
        log.event("interrupt-idle" if kind == "own" else "x", bytes(32))
    log.hiding = False
    for each in (outside(log, manufacturer), inside(log, manufacturer)):
        (said,) = hidden_fields.check(each)
        assert (said.id, said.severity) == ("chip.hidden.undeclared", "violation")


@pytest.mark.finding("chip.hidden.shown")
@pytest.mark.parametrize("what", ["event", "own", "snapshot", "counters", "head"])
def test_a_token_that_shows_fields_in_a_confidential_boot_is_caught(
    device: Device, manufacturer: CertificateAuthority, what: str
) -> None:
    log = LogBuilder(device, hiding=True).boot().attach()
    token = log.token("event", {"name": "interrupt-idle" if what == "own" else "x", "digest": bytes(32)})
    log.hiding = what == "counters"
    if what == "counters":  # the name is shown, and the counters hidden
        hidden, log.openings[token.index] = hide(replace(token, body={"name": "interrupt-x", "digest": bytes(32)}))
        log.entries.append(sign(replace(hidden, body=token.body), device.key, device.chain))
    elif what == "snapshot":
        log.snapshot(LEAF)
    elif what != "head":
        log.append(token)
    head = log.head(b"n" * 32)
    log.hiding = what != "head"
    nonce_head = head if what == "head" else log.head(b"n" * 32)
    read = facts(log, manufacturer.certificate, head=nonce_head)
    for each in (read, revealed(read, log.openings)):
        assert found(each) == ["chip.hidden.shown"]


def test_what_a_case_carries_says_nothing_of_the_workload(device: Device, manufacturer: CertificateAuthority) -> None:
    """Neither in bytes nor once the tokens are read."""
    log = LogBuilder(device, hiding=True).boot().attach()
    log.event("manifest-draft", b"d" * 32)
    log.does(busy_ns=123_456_789_012)
    log.snapshot(LEAF, weights_bytes=7_654_321, kernels=54_321, flops=9_876_543_210, weights_root=b"w" * 32)
    signed = b"".join(log.entries) + log.head(b"n" * 32)
    for value in (7_654_321, 54_321, 9_876_543_210, 123_456_789_012, "manifest-draft", b"d" * 32, b"w" * 32):
        assert cbor(value) not in signed
        assert repr(value) not in repr([_parse(each) for each in log.entries])
