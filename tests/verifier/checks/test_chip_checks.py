"""The checks of identity, log and rate: an honest chip passes, every tampering is caught."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.chip_logs import LogBuilder, facts, make_device

from firmware_sim.device import Device
from verifier.checks import chip_identity, chip_log, chip_rate
from verifier.model.facts import LogFacts, Plan
from verifier.registry import Chip
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tokens import entry_digest
from weighbridge.core.errors import ChipError, Finding

PLAN = Plan(
    samples=1, seed=bytes(16), flops_threshold=1.0, chip_flops_per_day=1.0, period_days=1.0, snapshot_rate_per_day=1.0
)


@pytest.fixture
def log(device: Device) -> LogBuilder:
    """Two boots with events and snapshots: nine entries."""
    builder = LogBuilder(device).boot()
    builder.event("manifest-draft", b"d" * 32)
    for step in range(1, 4):
        builder.snapshot([(8, bytes([step]) * 32)], step=step)
    builder.boot()
    for step in range(4, 7):
        builder.snapshot([(8, bytes([step]) * 32)], step=step)
    return builder


def check(log: LogFacts) -> list[Finding]:
    return [*chip_identity.check(log), *chip_log.check(log), *chip_rate.check(log, PLAN)]


def ids(log: LogFacts) -> list[str]:
    return [finding.id for finding in check(log)]


def test_an_honest_log_has_no_finding(log: LogBuilder, manufacturer: CertificateAuthority) -> None:
    assert check(facts(log, manufacturer.certificate)) == []


def test_an_honest_log_that_grew_since_it_was_witnessed_has_no_finding(
    log: LogBuilder, manufacturer: CertificateAuthority
) -> None:
    chip = Chip(
        ueid=log.device.ueid, address="localhost:1", witnessed_size=4, witnessed_last=entry_digest(log.entries[3])
    )
    assert check(facts(log, manufacturer.certificate, chip=chip)) == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_in_any_entry_is_one_finding_about_that_entry(
    device: Device, manufacturer: CertificateAuthority, data: st.DataObject
) -> None:
    builder = LogBuilder(device).boot()
    builder.event("x", bytes(32))
    builder.snapshot([(8, bytes(32))])
    nonce, head = b"n" * 32, builder.head(b"n" * 32)
    place = data.draw(st.integers(0, 2))
    entry = bytearray(builder.entries[place])
    at = data.draw(st.integers(0, 8 * len(entry) - 1))
    entry[at // 8] ^= 1 << at % 8
    builder.entries[place] = bytes(entry)
    findings = check(facts(builder, manufacturer.certificate, head=head, nonce=nonce))
    assert [finding.id for finding in findings] in (["chip.token"], ["identity.chain"])
    assert findings[0].subject.endswith(f"entry {place}")


def test_dropped_and_moved_entries_break_the_counter(log: LogBuilder, manufacturer: CertificateAuthority) -> None:
    head = log.head(b"n" * 32)
    dropped = LogBuilder(log.device, entries=log.entries[:3] + log.entries[4:])
    assert ids(facts(dropped, manufacturer.certificate, head=head)) == ["chip.log.incomplete", "chip.log.counter"]
    log.entries[2], log.entries[3] = log.entries[3], log.entries[2]
    assert "chip.log.counter" in ids(facts(log, manufacturer.certificate, head=head))


def test_an_entry_that_altered_firmware_signed_again_breaks_the_chain(
    log: LogBuilder, manufacturer: CertificateAuthority
) -> None:
    head = log.head(b"n" * 32)
    log.resign(3, time_ms=log.time_ms - 3_000)
    assert "chip.log.chain" in ids(facts(log, manufacturer.certificate, head=head))


def test_a_cut_log_is_incomplete(log: LogBuilder, manufacturer: CertificateAuthority) -> None:
    head = log.head(b"n" * 32)
    log.entries.pop()
    assert ids(facts(log, manufacturer.certificate, head=head)) == ["chip.log.incomplete"]


def test_a_replaced_newest_entry_is_not_the_one_signed_for(log: LogBuilder, manufacturer: CertificateAuthority) -> None:
    head = log.head(b"n" * 32)
    log.entries.pop()
    log.event("something-harmless", bytes(32))
    assert ids(facts(log, manufacturer.certificate, head=head)) == ["chip.log.head"]


def test_an_old_head_played_back_is_caught(log: LogBuilder, manufacturer: CertificateAuthority) -> None:
    old = log.head(b"earlier nonce" * 2)
    assert ids(facts(log, manufacturer.certificate, head=old)) == ["chip.nonce.mismatch"]
    entry = facts(log, manufacturer.certificate, head=log.entries[-1])  # an entry is no head
    assert ids(entry) == ["chip.nonce.mismatch"]


def test_a_foreign_manufacturer_is_caught(log: LogBuilder) -> None:
    foreign = CertificateAuthority.create("Other").certificate
    found = ids(facts(log, foreign))
    assert set(found) == {"identity.chain"}
    assert len(found) == len(log.entries) + 1


def test_another_device_of_the_same_manufacturer_is_caught(
    log: LogBuilder, manufacturer: CertificateAuthority, tmp_path: Path
) -> None:
    other = LogBuilder(make_device(tmp_path, manufacturer)).boot()
    chip = Chip(ueid=log.device.ueid, address="localhost:1")
    assert ids(facts(other, manufacturer.certificate, chip=chip)) == ["chip.identity.mismatch"]


def test_a_log_restored_from_a_backup_is_rolled_back(log: LogBuilder, manufacturer: CertificateAuthority) -> None:
    chip = Chip(
        ueid=log.device.ueid, address="localhost:1", witnessed_size=9, witnessed_last=entry_digest(log.entries[8])
    )
    del log.entries[6:]
    assert ids(facts(log, manufacturer.certificate, chip=chip)) == ["chip.log.rolled_back"]
    log.snapshot([(8, b"h" * 32)])
    log.snapshot([(8, b"i" * 32)])
    log.snapshot([(8, b"j" * 32)])
    assert ids(facts(log, manufacturer.certificate, chip=chip)) == ["chip.log.changed"]


def test_clocks_and_boots_only_move_forwards(log: LogBuilder, manufacturer: CertificateAuthority) -> None:
    log.time_ms -= 3_600_000
    log.snapshot([(8, b"c" * 32)])
    assert ids(facts(log, manufacturer.certificate)) == ["chip.log.clock"]


def test_a_boot_without_an_entry_or_counting_back_is_caught(device: Device, manufacturer: CertificateAuthority) -> None:
    silent = LogBuilder(device).boot()
    silent.boot_count += 1
    silent.event("x", bytes(32))
    assert ids(facts(silent, manufacturer.certificate)) == ["chip.log.boot"]
    back = LogBuilder(device, boot_count=5).boot()
    back.boot_count = 2
    back.boot()
    assert ids(facts(back, manufacturer.certificate)) == ["chip.log.boot"]
    headless = LogBuilder(device, boot_count=1, boot_seed=bytes(32))
    headless.event("x", bytes(32))
    assert ids(facts(headless, manufacturer.certificate)) == ["chip.log.boot"]


def test_a_chip_that_snapshots_too_seldom_is_caught(device: Device, manufacturer: CertificateAuthority) -> None:
    lazy = LogBuilder(device, rate_milli=999).boot()
    lazy.rate_milli = 2000
    lazy.boot()
    findings = check(facts(lazy, manufacturer.certificate))
    assert [(finding.id, finding.severity) for finding in findings] == [("chip.rate.low", "warning")]


def test_a_dead_chip_is_one_finding(device: Device) -> None:
    dead = LogFacts(
        chip=Chip(ueid=device.ueid, address="localhost:1"), nonce=b"n" * 32, head=ChipError("it does not answer")
    )
    assert ids(dead) == ["chip.unreachable"]
