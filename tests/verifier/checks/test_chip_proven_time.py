"""Time that contacts prove: an honest chip that reports shows it, and no host's time of day lengthens it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chip_logs import LogBuilder, anchor, facts, make_device

from firmware_sim.device import Device
from verifier.checks import chip_proven_time
from verifier.checks.chip_clock import proven_ms
from verifier.model.facts import LogFacts
from verifier.model.reference_values import ChipLimits
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import UsageError, WeighbridgeError

MANUFACTURER = CertificateAuthority.create("Manufacturer")
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
HALF = ChipLimits(unproven_share=0.5)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    return make_device(tmp_path_factory.mktemp("chip"), MANUFACTURER)


def reported(device: Device, hours: float, **options: int) -> LogFacts:
    """A chip that reported right after its boot, and is read so many hours later (by the Verifier's clock)."""
    log = LogBuilder(device, options=options).boot()
    begin_ms, before = log.time_ms, anchor(log)
    gone = round(hours * HOUR_MS)
    log.uptime_ms += gone * options.get("clock_milli", 1000) // 1000
    log.time_ms += gone
    return facts(log, MANUFACTURER.certificate, anchors=[before], now_ms=begin_ms + gone)


def ids(log: LogFacts, limits: ChipLimits = HALF) -> list[str]:
    return [each.id for each in chip_proven_time.check(log, 1.0, limits)]


@pytest.mark.parametrize(("hours", "enough"), [(24, True), (13, True), (11, False), (0, False)])
def test_half_of_a_day_is_asked_for(device: Device, hours: float, enough: bool) -> None:
    log = reported(device, hours)
    assert ids(log) == ([] if enough else ["chip.time.unproven"])
    assert ids(log, ChipLimits()) == []


def test_a_log_that_was_not_read_has_findings_of_its_own(device: Device) -> None:
    assert ids(replace(reported(device, 0), head=WeighbridgeError("silent"))) == []


def test_a_reboot_right_before_the_contact_proves_nothing(device: Device) -> None:
    log = LogBuilder(device).boot()
    before = anchor(log)
    log.time_ms += DAY_MS
    log.boot()
    shown = facts(log, MANUFACTURER.certificate, anchors=[before], now_ms=log.time_ms)
    assert proven_ms(shown, DAY_MS) == 0
    assert ids(shown) == ["chip.time.unproven"]


def test_only_what_lies_in_the_period_counts(device: Device) -> None:
    """A month was proven, and then the chip was started anew with a date of its host's choice."""
    log = LogBuilder(device).boot()
    begin_ms = log.time_ms
    first = anchor(log)
    log.uptime_ms += 30 * DAY_MS
    log.time_ms += 60 * DAY_MS  # the host says that two months have gone by
    last = anchor(log, begin_ms + 30 * DAY_MS)
    log.boot()
    shown = facts(log, MANUFACTURER.certificate, anchors=[first, last], now_ms=begin_ms + 60 * DAY_MS)
    assert proven_ms(shown, 30 * DAY_MS) <= 5000
    assert proven_ms(shown, 60 * DAY_MS) == pytest.approx(30 * DAY_MS, abs=5000)


def test_a_slow_clock_proves_as_much_as_it_counted(device: Device) -> None:
    log = LogBuilder(device).boot()
    begin_ms, before = log.time_ms, anchor(log)
    log.uptime_ms += DAY_MS // 100
    shown = facts(log, MANUFACTURER.certificate, anchors=[before], now_ms=begin_ms + DAY_MS)
    assert proven_ms(shown, DAY_MS) == pytest.approx(DAY_MS // 100, abs=5000)


def test_a_simulated_clock_sees_a_day_in_an_hour(device: Device) -> None:
    assert proven_ms(reported(device, 1, clock_milli=24_000), DAY_MS) == pytest.approx(DAY_MS, abs=120_000)


@given(hours=st.floats(0, 100), period=st.integers(1, 10 * DAY_MS))
def test_proven_time_lies_in_the_period(device: Device, hours: float, period: int) -> None:
    log = reported(device, hours)
    assert 0 <= proven_ms(log, period) <= min(period, round(hours * HOUR_MS) + 5000)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_lies_between_nothing_and_all(share: float) -> None:
    with pytest.raises(UsageError, match="share of unproven time"):
        ChipLimits(unproven_share=share)
