"""A board drives a real chip's clock at a hundredth of its speed: boots take the host's time, uptime tells."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.station import Station, ids

from verifier.model.reference_values import ChipLimits, FirmwarePolicy

SLACK_S = 0.1


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    with Station(tmp_path_factory.mktemp("station")) as station:
        yield station


def inspected(
    station: Station, name: str, slack_s: float = SLACK_S, *, unproven_share: float = 1.0, **plan: Any
) -> dict[str, Any]:
    images, root = [station.root / "firmware.img"], station.manufacturer.certificate
    limits = ChipLimits(forced=True, clock_slack_s=slack_s, unproven_share=unproven_share)
    return station.inspect(name, given={"firmware": FirmwarePolicy.of(images, root, limits=limits)}, **plan)


def reboot(station: Station, name: str) -> None:
    station.chips[name].stop()
    station.chips[name].start()
    station.register(name)


@pytest.mark.finding("chip.clock.behind")
def test_a_slow_clock_is_noticed_at_the_first_contact(station: Station) -> None:
    station.chip("first", oscillator=0.01)
    time.sleep(20 * SLACK_S)
    report = inspected(station, "first")
    assert [(each["id"], each["severity"]) for each in report["findings"]] == [("chip.clock.behind", "warning")]


@pytest.mark.finding("chip.clock.slow")
def test_a_slow_clock_is_proven_at_the_second(station: Station) -> None:
    """The first is right after a boot, and clean; none of its time counts as uptime."""
    station.chip("second", oscillator=0.01)
    inspected(station, "second", slack_s=60.0)
    time.sleep(5 * SLACK_S)
    report = inspected(station, "second")
    assert ids(report, "violation") == ["chip.clock.slow"]
    assert report["counts"]["verified"] == 0


def test_a_reboot_before_each_contact_leaves_no_uptime(station: Station) -> None:
    """Boots take the host's time, so no clock is seen to be slow; but nothing is proven of the time between, either."""
    station.chip("rebooted", oscillator=0.01)
    for _ in range(2):
        report = inspected(station, "rebooted", slack_s=60.0)
        time.sleep(5 * SLACK_S)
        reboot(station, "rebooted")
    found = report["chips"][0]["interrupts"]
    assert (found["anchored_days"], found["expected"], found["p_few"]) == (0, 0, 1)


def test_an_honest_clock_passes_with_as_little_slack(station: Station) -> None:
    """Over a reboot, too; what lies between two contacts of one boot is proven uptime."""
    station.chip("honest")
    for _ in range(2):
        assert ids(inspected(station, "honest")) == []
        time.sleep(5 * SLACK_S)
        report = inspected(station, "honest")
        assert ids(report) == []
        assert report["chips"][0]["interrupts"]["anchored_days"] > 0
        reboot(station, "honest")


SHORT_DAYS = 1.0 / 86_400
"""A monitoring period of a second."""
SHORT: dict[str, Any] = {"period_days": SHORT_DAYS, "flops_threshold": SHORT_DAYS, "unproven_share": 0.5}


@pytest.mark.finding("chip.time.unproven")
def test_a_reboot_before_each_contact_proves_no_time(station: Station) -> None:
    """The clock is slow all the while; the Verifier asks for contacts that prove half of the period."""
    station.chip("unproven", oscillator=0.01)
    inspected(station, "unproven", slack_s=60.0)
    time.sleep(1.0)
    reboot(station, "unproven")
    report = inspected(station, "unproven", slack_s=60.0, **SHORT)
    assert [(each["id"], each["severity"]) for each in report["findings"]] == [("chip.time.unproven", "warning")]
    assert (report["counts"]["verified"], report["chips"][0]["proven_days"]) == (0, 0)
    proven = report["probability"]["proven"]
    assert (proven["p"], proven["unproven_share"]) == (0, 1)


def test_a_chip_that_two_contacts_enclose_proves_its_time(station: Station) -> None:
    station.chip("enclosed")
    inspected(station, "enclosed")
    time.sleep(1.2)
    report = inspected(station, "enclosed", **SHORT)
    assert ids(report) == []
    assert report["chips"][0]["proven_days"] >= 0.5 * SHORT_DAYS
    assert report["probability"]["proven"]["unproven_share"] <= 0.5
