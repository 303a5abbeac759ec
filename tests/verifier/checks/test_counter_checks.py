"""Counters of work only grow: honest logs pass, over attaches, boots and heads; any that runs backwards is caught."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.chip_logs import LogBuilder, _parse, anchor, facts

from firmware_sim.device import Device
from verifier.checks import chip_counters
from verifier.registry import Chip
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.work import NAMES, Work

LEAF = [(8, b"a" * 32)]


def busy(device: Device) -> LogBuilder:
    """A boot, a workload that works and leaves, another one, a boot, and work that no entry tells of yet."""
    log = LogBuilder(device).boot().attach()
    log.snapshot(LEAF, kernels=5, flops=100)
    log.detach(kernels=1, busy_ns=2, moved=3, flops=4, unknown_ns=5).attach().detach().boot().attach()
    return log.does(kernels=1, busy_ns=2, moved=3, flops=4, unknown_ns=5)


def found(log: LogBuilder, manufacturer: CertificateAuthority, **also: object) -> list[str]:
    return [each.id for each in chip_counters.check(facts(log, manufacturer.certificate, **also))]  # type: ignore[arg-type]


def test_an_honest_log_passes(device: Device, manufacturer: CertificateAuthority) -> None:
    log = busy(device)
    assert found(log, manufacturer) == []
    assert anchor(log).token.work == Work(kernels=7, busy_ns=4, moved=6, flops=108, unknown_ns=10)


@pytest.mark.finding("chip.counters.decreased")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", ["attach", "boot", "head"])
def test_a_counter_that_runs_backwards_is_caught(
    device: Device, manufacturer: CertificateAuthority, name: str, where: str
) -> None:
    log = busy(device)
    assert log.work is not None
    log.append(log.token("event", {"name": "x", "digest": bytes(32)}))
    log.work = replace(log.work, **{name: getattr(log.work, name) - 1})
    if where == "attach":
        log.attach()
    elif where == "boot":
        log.boot()
    assert found(log, manufacturer) == ["chip.counters.decreased"]


@pytest.mark.finding("chip.counters.missing")
def test_a_chip_that_does_not_say_is_caught(device: Device, manufacturer: CertificateAuthority) -> None:
    log = LogBuilder(device, work=None).boot()
    assert found(log, manufacturer) == ["chip.counters.missing"]
    later = busy(device)
    later.work = None
    later.event("x", bytes(32))
    assert found(later, manufacturer) == ["chip.counters.decreased", "chip.counters.missing"]


def test_entries_of_earlier_firmware_that_are_known_pass(device: Device, manufacturer: CertificateAuthority) -> None:
    log = LogBuilder(device, work=None).boot()
    log.work = Work()
    log.boot().attach()
    seen = Chip(ueid=device.ueid, address="localhost:1", witnessed_size=1)
    assert found(log, manufacturer, chip=seen) == []


@pytest.mark.finding("chip.counters.differ")
@pytest.mark.parametrize("name", ["kernels", "flops"])
@pytest.mark.parametrize(("more", "caught"), [(-1, True), (0, False), (7, False), (8, True)])
def test_a_snapshot_that_says_something_else_than_the_counters_is_caught(
    device: Device, manufacturer: CertificateAuthority, name: str, more: int, caught: bool
) -> None:
    """Another thread may go on while it is being signed, so what it says lies between two entries' counters."""
    log = LogBuilder(device).boot().attach().detach(kernels=40, flops=40).attach().does(kernels=9, flops=9)
    log.event("x", bytes(32))
    index = log.snapshot(LEAF, kernels=16, flops=16)
    assert found(log, manufacturer) == []
    said = _parse(log.entries[index])
    log.resign(index, body={**said.body, name: 9 + more})
    assert found(log, manufacturer) == ["chip.counters.differ"] * caught
