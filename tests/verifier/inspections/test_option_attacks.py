"""A real chip that was started with options that keep snapshots away: a Verifier sees them in its log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.station import Station, ids

from firmware_sim import Shim
from verifier.model.reference_values import ChipLimits, FirmwarePolicy


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    with Station(tmp_path_factory.mktemp("station")) as station:
        yield station


def inspected(station: Station, name: str, **limits: Any) -> dict[str, Any]:
    images, root = [station.root / "firmware.img"], station.manufacturer.certificate
    return station.inspect(name, given={"firmware": FirmwarePolicy.of(images, root, limits=ChipLimits(**limits))})


@pytest.mark.finding("chip.options.exceeded")
def test_an_interrupt_that_waits_for_ever(station: Station) -> None:
    """20,000 kernels while it is pending, and then the power goes, as if nothing had been."""
    process = station.chip("patient", hold=10**12)
    x = torch.ones(2)
    with Shim.connect(process.socket) as shim:
        shim.request_snapshot()
        for _ in range(20_000):
            x = x + 1
        assert shim.pending
        process.kill()
    process.start()
    station.register("patient")
    report = inspected(station, "patient", forced=True)
    assert ids(report, "violation") == ["chip.options.exceeded"]
    assert ids(report, "info") == ["chip.interrupt.unserved"]
    assert report["counts"]["verified"] == 0


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({"allow_forced": True}, {"clock_speed": 60.0}),
        ({"clock_speed": 60.0}, {"forced": True}),
        ({"clock_speed": 0.01}, {"clock_speed": 60.0}),
    ],
)
def test_other_options(station: Station, options: dict[str, Any], limits: dict[str, Any]) -> None:
    name = "-".join(f"{key}-{value}" for key, value in options.items())
    station.chip(name, rate_per_day=1.0, **{"allow_forced": False, **options})
    assert ids(inspected(station, name, **limits)) == ["chip.options.exceeded"]


def test_the_firmwares_defaults_pass(station: Station) -> None:
    station.chip("default", hold=4096, allow_forced=False)
    report = inspected(station, "default")
    assert ids(report) == []
    assert report["counts"]["verified"] == 1
    assert report["firmware"]["limits"] == {
        **{"hold": 4096, "clock_speed": 1.0, "forced": False, "clock_slack_s": 60.0, "unproven_share": 1.0}
    }
