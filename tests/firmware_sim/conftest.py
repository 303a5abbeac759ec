"""Fixtures that several tests of chips share; some have chips with other options."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.chip_station import ChipStation

from firmware_sim import ChipProcess


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> ChipStation:
    """A manufacturer, an authority, and room for chips."""
    return ChipStation.create(tmp_path_factory.mktemp("station"))


@pytest.fixture(scope="module")
def chip(station: ChipStation) -> Iterator[ChipProcess]:
    """A chip whose workload may ask for interrupts."""
    with station.chip(allow_forced=True) as process:
        yield process
