"""Has the zoo's tests record their trainings and measure them, instead of replaying them on three machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ZOO = Path(__file__).parents[1] / "tests" / "zoo"
Measured = dict[str, Any]


class _Collector:
    """A pytest plugin that takes the place of the zoo's own fixture."""

    def __init__(self, measure: Callable[[Path], Measured]) -> None:
        self.found: dict[str, Measured] = {}
        self._measure, self._test = measure, ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: Any) -> None:
        self._test = item.name.removeprefix("test_")

    @pytest.fixture
    def zoo(self, tmp_path: Path) -> Any:
        from support.recordings import train
        from zoo.machines import Zoo

        collector = self

        class Recorded(Zoo):
            def holds(self, build: Any, step: Any, batches: Any, *, seed: int = 7, **options: Any) -> Any:
                train(self.path, build, step, batches, seed=seed, **options)
                collector.found[collector._test] = collector._measure(self.path)
                pytest.skip("measured: what the test asserts of replays is not asked here")

        return Recorded(tmp_path / "run", [])


def measured(measure: Callable[[Path], Measured], where: Path = ZOO) -> dict[str, Measured]:
    """Records every training of the zoo, or of one of its modules.

    Args:
        measure: Measures a recording.
        where: The zoo, or a module of it.

    Returns:
        What was measured, by test.
    """
    plugin = _Collector(measure)
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--noconftest", "-W", "ignore"]
    pytest.main([*options, str(where)], plugins=[plugin])
    return plugin.found
