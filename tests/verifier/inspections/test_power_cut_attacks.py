"""Power is taken from a real chip whenever its workload sees an interrupt, and an older image of its NVRAM put back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.power_cuts import cut_after
from support.station import Station, ids

from firmware_sim import ChipProcess, Shim

PER_SECOND = 4.0
CUTS = 4


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    with Station(tmp_path_factory.mktemp("station")) as station:
        yield station


def chip_of(station: Station, name: str, **options: Any) -> tuple[ChipProcess, Path]:
    return station.chip(name, **options), station.root / "chips" / name


def work(shim: Shim, until: float) -> bool:
    """Multiplies matrices until it sees an interrupt, which it then does not serve; returns whether it saw one."""
    x = torch.ones(8, 8)
    while not shim.pending and time.monotonic() < until:
        x = x @ x * 0.1
    return shim.pending


@pytest.mark.finding("chip.interrupt.unserved")
def test_power_cuts_at_interrupts_are_seen(station: Station) -> None:
    """Unrecorded training: whenever the chip wants to look, its power goes, and its memory is set back."""
    process, home = chip_of(station, "cut", clock_speed=86_400.0 * PER_SECOND, hold=4096)

    def seen(shim: Shim) -> None:
        assert work(shim, time.monotonic() + 60)

    for _ in range(CUTS):
        cut_after(process, home, seen, older=True)
    station.register("cut")
    report = station.inspect("cut")
    assert ids(report, "violation") == ["chip.interrupt.unserved"]
    assert report["verdict"] != "clean"
    assert report["counts"]["verified"] == 0
    assert report["chips"][0]["snapshots"] == []
    found = report["chips"][0]["interrupts"]
    assert found["unserved"] == found["reboots_at_interrupts"] == found["reboots"] == CUTS


@pytest.mark.finding("chip.reboot.timed")
def test_few_power_cuts_at_rare_interrupts_are_too_many(station: Station) -> None:
    """At one interrupt a day, two reboots of two fall on one by chance less than once in a million."""
    process, home = chip_of(station, "timed", rate_per_day=1.0)

    def asked(shim: Shim) -> None:
        shim.request_snapshot()
        assert shim.pending

    for _ in range(2):
        cut_after(process, home, asked, older=False)
    station.register("timed")
    report = station.inspect("timed")
    assert ids(report, "warning") == ["chip.reboot.timed"]
    assert report["counts"]["verified"] == 0
    assert report["chips"][0]["interrupts"]["p_reboots"] < 1e-6


def test_power_cuts_at_other_moments_accuse_nobody(station: Station) -> None:
    """The same rate, the same workload, and as many cuts: between interrupts, each of which led to its snapshot."""
    process, home = chip_of(station, "honest", rate_per_day=1.0)
    for _ in range(CUTS):
        cut_after(process, home, lambda shim: work(shim, time.monotonic() + 0.05), older=False)
    station.register("honest")
    report = station.inspect("honest")
    assert ids(report) == []
    assert report["counts"]["verified"] == 1
    found = report["chips"][0]["interrupts"]
    assert (found["unserved"], found["reboots"], found["reboots_at_interrupts"]) == (0, CUTS, 0)
