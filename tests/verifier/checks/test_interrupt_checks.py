"""Interrupts: those that found nothing to look at, those that were starved, and how many there were."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from scipy.special import bdtrc, pdtr
from support.chip_logs import EARLIER_BOOT, LogBuilder, anchor, facts

from firmware_sim.device import Device
from verifier.checks import interrupts
from verifier.model.policies import SnapshotPolicy
from weighbridge.attest import tokens
from weighbridge.attest.identity import CertificateAuthority

LEAVES = [(100, b"b" * 32)]
DAY_MS = 86_400_000


def log_of(device: Device, **done: Any) -> LogBuilder:
    return more(LogBuilder(device).boot(), **done)


def more(log: LogBuilder, *, snapshots: int = 0, unserved: int = 0, idle: int = 0, days: float = 0.0) -> LogBuilder:
    for number in range(snapshots):
        log.snapshot(LEAVES, step=1, op=number)
    for name, count in ((interrupts.UNSERVED, unserved), (interrupts.IDLE, idle)):
        for _ in range(count):
            log.event(name, bytes(32))
    log.uptime_ms += int(days * DAY_MS)
    log.time_ms += int(days * DAY_MS)
    return log


@pytest.mark.parametrize(
    ("snapshots", "unserved", "severity"),
    [
        (5, 0, None), (0, 0, None), (5, 1, "info"), (0, 2, "info"), (40, 4, "info"), (0, 3, "violation"),
        (20, 3, "violation"),
    ],
)  # fmt: skip
def test_starved_interrupts(
    device: Device, manufacturer: CertificateAuthority, snapshots: int, unserved: int, severity: str | None
) -> None:
    """A crash or two may leave an interrupt unserved; who does it again and again does not want to be seen."""
    log = facts(log_of(device, snapshots=snapshots, unserved=unserved, idle=3), manufacturer.certificate)
    found = [(finding.id, finding.severity) for finding in interrupts.check(log)]
    assert found == ([("chip.interrupt.unserved", severity)] if severity else [])
    lenient = interrupts.check(log, SnapshotPolicy(unserved=100))
    assert [finding.severity for finding in lenient] == (["info"] if severity else [])


@pytest.mark.parametrize(("held", "found"), [(256, []), (257, ["chip.interrupt.late"])])
def test_a_snapshot_that_came_too_late(
    device: Device, manufacturer: CertificateAuthority, held: int, found: list[str]
) -> None:
    log = LogBuilder(device).boot()
    log.snapshot(LEAVES, held=held)
    assert [finding.id for finding in interrupts.check(facts(log, manufacturer.certificate))] == found


def evidence(manufacturer: CertificateAuthority, *logs: LogBuilder) -> dict[str, Any]:
    """Of the last of some states of one log; Verifiers saw all of them when they were the newest."""
    newest = logs[-1]
    return interrupts.evidence(
        facts(newest, manufacturer.certificate, anchors=list(map(anchor, logs[:-1])), now_ms=newest.time_ms)
    )


def test_evidence_of_an_honest_chip(device: Device, manufacturer: CertificateAuthority) -> None:
    """Ten days at one a day, half of them idle; a Verifier saw the chip at their beginning and at their end."""
    log = LogBuilder(device).boot()
    begin = copy.deepcopy(log)
    found = evidence(manufacturer, begin, more(log, snapshots=5, idle=4, days=10))
    assert (found["snapshots"], found["idle"], found["unserved"]) == (5, 4, 0)
    assert found["uptime_days"] == pytest.approx(10, abs=0.01)
    assert found["anchored_days"] == pytest.approx(10, abs=0.01)
    assert found["expected"] == pytest.approx(10, abs=0.01)
    assert found["p_few"] == pytest.approx(0.458, abs=0.01)
    assert found["p_many"] == pytest.approx(0.667, abs=0.01)


def test_evidence_of_interrupts_that_were_kept_from_coming(device: Device, manufacturer: CertificateAuthority) -> None:
    """Sixty days up and nothing logged: an honest chip shows this with probability e^-60."""
    log = LogBuilder(device).boot()
    begin = copy.deepcopy(log)
    few, many = more(copy.deepcopy(log), days=60), more(log, snapshots=40, days=1)
    assert interrupts.check(facts(few, manufacturer.certificate)) == []  # evidence, no finding
    assert evidence(manufacturer, begin, few)["p_few"] < 1e-20
    assert evidence(manufacturer, begin, many)["p_many"] < 1e-20


def test_what_is_anchored_at_one_end_proves_nothing(device: Device, manufacturer: CertificateAuthority) -> None:
    """Sixty days at the first contact, or up to a reboot right before the second."""
    log = more(LogBuilder(device).boot(), days=60)
    first = evidence(manufacturer, log)
    begin = copy.deepcopy(log)
    again = evidence(manufacturer, begin, more(more(log, days=60), idle=1).boot())
    for found, days in ((first, 60), (again, 120)):
        assert found["uptime_days"] == pytest.approx(days, abs=0.01)
        assert (found["anchored_days"], found["expected"], found["p_few"], found["p_many"]) == (0, 0, 1, 1)


def test_evidence_counts_every_boot_for_itself(device: Device, manufacturer: CertificateAuthority) -> None:
    """Both ends of the first boot and of the second were seen; the interrupt between them is of neither."""
    seen = [LogBuilder(device).boot()]
    seen.append(more(copy.deepcopy(seen[-1]), snapshots=1, days=3))
    log = copy.deepcopy(seen[-1])
    log.event(interrupts.IDLE, bytes(32))
    seen += [log.boot(unserved=True), more(copy.deepcopy(log), idle=2, days=2)]
    found = evidence(manufacturer, *seen)
    assert found["anchored_days"] == pytest.approx(5, abs=0.01)
    assert (found["snapshots"], found["idle"], found["unserved"]) == (1, 3, 1)
    assert found["p_few"] == pytest.approx(float(pdtr(3, found["expected"])))


def rebooted(device: Device, cuts: list[bool], **options: int) -> LogBuilder:
    log = LogBuilder(device, rate_milli=options.pop("rate_milli", 1000), options=dict(options)).boot()
    for unserved in cuts:
        log.boot(unserved=unserved)
    return log


@pytest.mark.parametrize(
    ("cuts", "options", "ids"),
    [
        ([False] * 40, {}, []),
        ([True], {}, ["chip.interrupt.unserved"]),
        ([True, False, True], {}, ["chip.interrupt.unserved"]),
        ([True, True], {}, ["chip.interrupt.unserved", "chip.reboot.timed"]),
        ([True, True], {"rate_milli": 24_000}, ["chip.interrupt.unserved"]),  # chance explains it at one an hour,
        ([True, True], {"clock_milli": 24_000}, ["chip.interrupt.unserved"]),  # or if the clock runs so much faster
        ([False] * 19 + [True] * 3, {}, ["chip.interrupt.unserved", "chip.reboot.timed"]),
    ],
)
def test_reboots_at_interrupts(
    device: Device, manufacturer: CertificateAuthority, cuts: list[bool], options: dict[str, int], ids: list[str]
) -> None:
    log = facts(rebooted(device, cuts, **options), manufacturer.certificate)
    assert [finding.id for finding in interrupts.check(log)] == ids
    found = interrupts.evidence(log)
    assert (found["reboots"], found["reboots_at_interrupts"]) == (len(cuts), sum(cuts))
    assert (found["p_reboots"] < interrupts.REBOOT_CHANCE) == ("chip.reboot.timed" in ids)


def test_reboots_of_earlier_firmware_say_nothing(device: Device, manufacturer: CertificateAuthority) -> None:
    """Its boot entries do not tell whether an interrupt stood."""
    log = rebooted(device, [False, False])
    for index in range(3):
        body = tokens.read_own(log.entries[index]).body
        log.resign(index, body={name: body[name] for name in body if name in EARLIER_BOOT})
    found = interrupts.evidence(facts(log, manufacturer.certificate))
    assert (found["reboots"], found["p_reboots"]) == (0, 1.0)


def test_the_false_alarm_rate_of_reboots_is_the_stated_one() -> None:
    """Reboots at random moments of a chip that interrupts once an hour, each of which stands for a whole minute."""
    generator = np.random.default_rng(7)
    reboots, chance = 50, interrupts.STANDING_S / 3600
    cut = generator.binomial(reboots, chance, size=200_000)
    p = bdtrc(cut - 1, reboots, chance)
    for level in (0.1, 0.01, 0.001):
        assert (p < level).mean() <= level
