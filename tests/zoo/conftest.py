"""Fixtures of the zoo; see `machines`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from zoo.machines import ELSEWHERE, Machine, Zoo


@pytest.fixture(scope="session")
def machines() -> Iterator[list[Machine]]:
    """Two processes on other instruction sets."""
    started = [Machine(environment) for environment in ELSEWHERE]
    yield started
    for machine in started:
        machine.stop()


@pytest.fixture
def zoo(tmp_path: Path, machines: list[Machine]) -> Zoo:
    """A place to record one training in."""
    return Zoo(tmp_path / "run", machines)
