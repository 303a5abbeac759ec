"""Two tiers of tests: `--tier quick` leaves out what `tests/durations.json` says is slow, `--tier slow` runs that.

Measured durations decide, so tests are not marked by hand. The file is written by `--update-durations` (which
`make durations` passes) and lists what took longer than `LISTED` seconds. A test that it does not list is quick. What
did not run keeps what was listed of it.

The quick tier leaves out each test whose call took longer than `TEST_LIMIT`, and each module whose fixtures took longer
than `MODULE_LIMIT` altogether. Where that leaves nothing of a module, its cheapest test stays if it can be had within
`MODULE_LIMIT`. A test marked `essential` always stays.

Where the environment variable `TESTS_END` is set, seconds since 1970, no test begins after that moment. Those left over
are skipped, and the summary ends with their number: a slow machine then ends in time and says what it did not look at.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / "durations.json"
LISTED = 0.2
TEST_LIMIT = 0.3
MODULE_LIMIT = 3.0
SHORT = 40.0
LATE = "NOT RUN for want of time"

Seconds = dict[str, float]


def module_of(test: str) -> str:
    """Returns the path of a test's module, relative to the root."""
    return test.partition("::")[0]


def left_out(tests: Iterable[str], calls: Seconds, fixtures: Seconds, essential: Iterable[str] = ()) -> set[str]:
    """Returns which tests the quick tier leaves out.

    Args:
        tests: All tests that were collected, as node identifiers.
        calls: Measured seconds of tests.
        fixtures: Measured seconds of all set-ups and teardowns in a module.
        essential: The tests that always stay.
    """
    kept = set(essential)
    modules = defaultdict(list)
    for test in tests:
        modules[module_of(test)].append(test)
    out: set[str] = set()
    for module, members in modules.items():
        before = fixtures.get(module, 0.0)
        quick = {test for test in members if calls.get(test, 0.0) <= TEST_LIMIT} if before <= MODULE_LIMIT else set()
        if not quick:
            cheapest = min(members, key=lambda test: calls.get(test, 0.0))
            if before + calls.get(cheapest, 0.0) <= MODULE_LIMIT:
                quick = {cheapest}
        out.update(set(members) - quick - kept)
    return out


def longest_first(tests: Iterable[str], calls: Seconds, fixtures: Seconds, *, hurried: bool = False) -> list[str]:
    """Returns modules by what their tests take together, the longest first, so that workers end at the same time.

    Args:
        tests: All tests that run, as node identifiers.
        calls: Measured seconds of tests.
        fixtures: Measured seconds of all set-ups and teardowns in a module.
        hurried: Whether time may not be enough: then all modules of at most `SHORT` seconds come before the others, as
            what is left out in the end should be few modules and not many.
    """
    total: Counter[str] = Counter()
    for test in tests:
        total[module_of(test)] += calls.get(test, 0.01)
    for module in total:
        total[module] += fixtures.get(module, 0.0)
    late = {module: hurried and seconds > SHORT for module, seconds in total.items()}
    return sorted(total, key=lambda module: (late[module], -total[module], module))


class Tiers:
    """The pytest plugin: leaves out and orders tests, and measures them."""

    def __init__(self, tier: str, update: bool) -> None:
        self._tier, self._update = tier, update
        self._end = float(os.environ.get("TESTS_END", "inf"))
        known = json.loads(FILE.read_text()) if FILE.exists() else {}
        self._known_calls: Seconds = known.get("tests", {})
        self._known_fixtures: Seconds = known.get("fixtures", {})
        self._calls: Counter[str] = Counter()
        self._fixtures: Counter[str] = Counter()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leaves out what is not of the tier, and puts the longest modules first."""
        kept = self.of_tier(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
        names, hurried = [item.nodeid for item in items], math.isfinite(self._end)
        order = longest_first(names, self._known_calls, self._known_fixtures, hurried=hurried)
        rank = {module: number for number, module in enumerate(order)}
        items.sort(key=lambda item: rank[module_of(item.nodeid)])

    def of_tier(self, items: list[pytest.Item]) -> set[pytest.Item]:
        """Returns those of all collected tests that the tier has."""
        if self._tier == "all":
            return set(items)
        essential = [item.nodeid for item in items if item.get_closest_marker("essential")]
        out = left_out([item.nodeid for item in items], self._known_calls, self._known_fixtures, essential)
        slow = {item for item in items if item.nodeid in out or item.get_closest_marker("slow")}
        return slow if self._tier == "slow" else set(items) - slow

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Skips a test, before its fixtures, if the time is over."""
        if time.time() > self._end:
            pytest.skip(LATE)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Says how many tests were skipped because the time was over."""
        skipped = terminalreporter.stats.get("skipped", [])
        late = Counter(
            module_of(each.nodeid) for each in skipped if isinstance(each.longrepr, tuple) and LATE in each.longrepr[2]
        )
        if late:
            terminalreporter.write_line(f"{late.total()} tests were {LATE}: this run says nothing of them", red=True)
            terminalreporter.write_line(f"They are those of {', '.join(sorted(late))}", red=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds up what tests and fixtures take."""
        if report.when == "call":
            self._calls[report.nodeid] += report.duration
        else:
            self._fixtures[module_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the durations, once, where tests are reported and not where they run."""
        if not self._update or hasattr(session.config, "workerinput"):
            return
        ran = {module_of(test) for test in self._calls}
        fixtures = {module: taken for module, taken in self._fixtures.items() if module in ran}
        listed: dict[str, Any] = {
            "machine": f"{platform.machine()}, {platform.python_implementation()} {platform.python_version()}",
            "fixtures": listing(self._known_fixtures, fixtures),
            "tests": listing(self._known_calls, self._calls),
        }
        FILE.write_text(json.dumps(listed, indent=1) + "\n")


def listing(known: Seconds, measured: Seconds) -> Seconds:
    """Returns what is to be listed: what was measured, and of what did not run what was known."""
    return {name: round(taken, 1) for name, taken in sorted({**known, **measured}.items()) if taken >= LISTED}
