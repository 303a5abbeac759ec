"""Options of the firmware: what a boot entry states is compared with the Verifier's own limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.chip_logs import EARLIER_BOOT, LogBuilder, facts

from firmware_sim.device import Device
from firmware_sim.firmware import DEFAULT_HOLD
from verifier.checks import chip_options
from verifier.model.reference_values import ChipLimits, FirmwarePolicy
from weighbridge.attest import tokens
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import UsageError

FAST = ChipLimits(clock_speed=3600.0, forced=True)


def found(log: LogBuilder, manufacturer: CertificateAuthority, limits: ChipLimits, witnessed: int = 0) -> list[str]:
    shown = facts(log, manufacturer.certificate)
    shown = replace(shown, chip=replace(shown.chip, witnessed_size=witnessed))
    return [finding.evidence["option"] for finding in chip_options.check(shown, limits)]


def test_the_defaults_are_within_the_defaults(device: Device, manufacturer: CertificateAuthority) -> None:
    limits = FirmwarePolicy().limits
    log = LogBuilder(device, options={"hold": DEFAULT_HOLD}).boot()
    assert found(log, manufacturer, limits) == []
    assert limits.hold == DEFAULT_HOLD


@pytest.mark.parametrize(
    ("options", "beyond", "fast"),
    [
        ({"hold": DEFAULT_HOLD + 1}, ["hold"], ["hold"]),
        ({"hold": 10**12}, ["hold"], ["hold"]),
        ({"clock_milli": 3_600_000}, ["clock speed"], []),
        ({"clock_milli": 3_601_000}, ["clock speed"], ["clock speed"]),
        ({"clock_milli": 10}, ["clock speed"], ["clock speed"]),
        ({"clock_milli": 0}, ["clock speed"], ["clock speed"]),
        ({"forced": True}, ["forced interrupts"], []),
        ({"hold": 10**12, "clock_milli": 999, "forced": True}, ["hold", "clock speed", "forced interrupts"],
         ["hold", "clock speed"]),
    ],
)  # fmt: skip
def test_options_beyond_the_limits(
    device: Device, manufacturer: CertificateAuthority, options: dict[str, Any], beyond: list[str], fast: list[str]
) -> None:
    """Also in a boot that is over: it is enough to have run with them once."""
    log = LogBuilder(device, options=dict(options)).boot()
    log.options = {}
    log.boot()
    assert found(log, manufacturer, ChipLimits()) == beyond
    assert found(log, manufacturer, FAST) == fast
    assert found(log, manufacturer, ChipLimits(), witnessed=1) == []  # it was judged when it was new


def test_options_that_are_not_stated(device: Device, manufacturer: CertificateAuthority) -> None:
    """Earlier firmware could be started with any, and signed none of them but the hold."""
    log = LogBuilder(device).boot()
    body = tokens.read_own(log.entries[0]).body
    log.resign(0, body={name: body[name] for name in body if name in EARLIER_BOOT})
    assert found(log, manufacturer, FAST) == ["clock speed"]
    assert found(log, manufacturer, FAST, witnessed=1) == []


@pytest.mark.parametrize("wrong", [{"hold": -1}, {"clock_speed": 0.5}, {"clock_speed": float("nan")}])
def test_limits_that_no_chip_can_keep(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ChipLimits(**wrong)
