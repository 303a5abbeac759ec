"""What each finding about a snapshot takes to appear alone in a report: a chip that signed something else.

One honest training on a real chip is behind all of them. Its log is then in the hands of a party with the chip's key,
who changes one claim and signs everything anew; the Prover and its transcript stay honest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.exactly import alone, found, marked
from support.false_chips import FalseChips, Opened, Shown, taken
from support.shared_work import SharedWork
from support.station import Station
from support.training_on_chip import train

from firmware_sim import Shim
from verifier.registry import Registry
from verifier.store.cache import Cache
from weighbridge.attest.tokens import read_own
from weighbridge.attest.work import Work

LARGE = 8192
"""Bytes of the first layer's weights, and of each of their two moments."""


@dataclass(frozen=True)
class Bench:
    """The station with the run, and what inspections share."""

    station: Station
    chips: FalseChips
    work: SharedWork
    cache: Cache
    prover: str

    @contextmanager
    def newcomer(self, directory: Path) -> Iterator[None]:
        """The Verifier has never seen the chip's log: else each change of its past would be one finding more."""
        before = self.station.registry
        self.station.registry = Registry(directory / "registry.db")
        try:
            yield
        finally:
            self.station.registry.close()
            self.station.registry = before

    def inspect(self, work: SharedWork | None = None) -> dict[str, Any]:
        """Inspects the chip as it is registered; `work`: what of other inspections need not be done again."""
        return self.station.inspect("base", cache=self.cache, shared=work or self.work)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("station")
    with Station(root) as station, FalseChips(station) as chips:
        process = station.chip("base")
        with Shim.connect(process.socket) as chip:
            train(station.runs / "base", chip)
        yield Bench(station, chips, SharedWork(), Cache(root / "cache"), station.prover())


@pytest.fixture
def newcomer(bench: Bench, tmp_path: Path) -> Iterator[Bench]:
    with bench.newcomer(tmp_path):
        yield bench


def only(shown: Shown) -> tuple[int, Opened]:
    """The one snapshot."""
    (index,) = shown.find("snapshot")
    return index, shown.opened[index]


def moment(opened: Opened) -> tuple[int, bytes]:
    """A storage of the optimizer's."""
    return next(leaf for leaf in opened.leaves if leaf[0] == LARGE and leaf not in opened.weights)


def held(shown: Shown, **changes: Any) -> None:
    """The chip signed that it held something else, and opens that."""
    index, opened = only(shown)
    shown.opened[index] = other = replace(opened, **changes)
    shown.claim(index, **other.claims())


def nothing_changed(shown: Shown) -> None:
    """The control: only the signatures are new."""
    shown.claim(0)


def other_operation(shown: Shown) -> None:
    index, _ = only(shown)
    op = read_own(shown.log.entries[index]).body["op"]
    assert isinstance(op, int)
    shown.claim(index, op=op + 1)


def other_operations(shown: Shown) -> None:
    shown.claim(only(shown)[0], running=bytes(32))


def opens_something_else(shown: Shown) -> None:
    index, opened = only(shown)
    leaves = [leaf for leaf in opened.leaves if leaf != moment(opened)]
    shown.opened[index] = replace(opened, leaves=[*leaves, (LARGE, bytes(32))])


def lacks(shown: Shown) -> None:
    _, opened = only(shown)
    held(shown, leaves=[leaf for leaf in opened.leaves if leaf != moment(opened)])


def holds_more(shown: Shown) -> None:
    held(shown, leaves=[*only(shown)[1].leaves, (1 << 20, b"another model".ljust(32))])


def declares_others(shown: Shown) -> None:
    """A moment of the optimizer, in place of the weights that belong to it."""
    _, opened = only(shown)
    held(shown, weights=[moment(opened), *(leaf for leaf in opened.weights if leaf[0] != LARGE)])


def works_on(shown: Shown) -> None:
    shown.worked(only(shown)[0], Work(flops=10**9))


def late(shown: Shown) -> None:
    hold = read_own(shown.log.entries[0]).body["hold"]
    assert isinstance(hold, int)
    shown.claim(only(shown)[0], held=hold + 1)


def says_more(shown: Shown) -> None:
    """What it says of the workload is not what its counters say."""
    index, _ = only(shown)
    flops = read_own(shown.log.entries[index]).body["flops"]
    assert isinstance(flops, int)
    shown.claim(index, flops=flops + 1)


def hurries(shown: Shown) -> None:
    """More kernels than any chip runs in that time: its clock was slowed."""
    shown.worked(only(shown)[0], Work(kernels=10**12))


def test_the_honest_chip_has_no_finding(newcomer: Bench) -> None:
    newcomer.station.register("base", newcomer.prover)
    report = newcomer.inspect()
    assert found(report) == set()
    assert [each["status"] for each in report["chips"][0]["snapshots"]] == ["explained"]


def test_the_same_log_signed_anew_has_no_finding(newcomer: Bench, tmp_path: Path) -> None:
    assert found(shown_with(newcomer, tmp_path, nothing_changed)) == set()


def shown_with(bench: Bench, scratch: Path, tamper: Callable[[Shown], None]) -> dict[str, Any]:
    shown = taken(bench.chips.directory("base"), scratch)
    tamper(shown)
    bench.chips.show("base", shown, prover=bench.prover)
    return bench.inspect()


@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(other_operation, marks=pytest.mark.finding("snapshot.position.mismatch")),
        pytest.param(other_operations, marks=pytest.mark.finding("snapshot.running.mismatch")),
        pytest.param(opens_something_else, marks=pytest.mark.finding("snapshot.opening.mismatch")),
        pytest.param(lacks, marks=pytest.mark.finding("snapshot.memory.missing")),
        pytest.param(holds_more, marks=pytest.mark.finding("snapshot.memory.unexplained")),
        pytest.param(declares_others, marks=pytest.mark.finding("snapshot.weights.mismatch")),
        pytest.param(works_on, marks=pytest.mark.finding("snapshot.work.unexplained")),
        pytest.param(says_more, marks=pytest.mark.finding("chip.counters.differ")),
        pytest.param(late, marks=pytest.mark.finding("chip.interrupt.late")),
        pytest.param(hurries, marks=pytest.mark.finding("chip.work.impossible")),
    ],
)
def test_a_chip_that_signed_something_else(
    newcomer: Bench, tmp_path: Path, tamper: Callable[[Shown], None], request: pytest.FixtureRequest
) -> None:
    identifier = marked(request)
    report = shown_with(newcomer, tmp_path, tamper)
    alone(report, identifier)
    assert report["counts"]["verified"] == 0 or identifier == "snapshot.work.unexplained"


@pytest.mark.finding("snapshot.unexplained")
def test_a_prover_that_knows_nothing_of_it(newcomer: Bench) -> None:
    newcomer.station.register("base")
    alone(newcomer.inspect(), "snapshot.unexplained")


@pytest.mark.finding("chip.snapshot.leaves")
def test_leaves_that_are_gone(newcomer: Bench) -> None:
    """The real chip, whose store was damaged."""
    (leaves,) = (newcomer.chips.directory("base") / "snapshots").iterdir()
    content = leaves.read_bytes()
    leaves.write_bytes(content[:-1])
    newcomer.station.register("base", newcomer.prover)
    try:
        alone(newcomer.inspect(), "chip.snapshot.leaves")
    finally:
        leaves.write_bytes(content)


@pytest.mark.finding("device.arithmetic")
@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush subnormal numbers")
def test_a_verifier_whose_own_machine_flushes_subnormal_numbers(
    newcomer: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something that is installed there switches it on in every process, as libraries built for speed do."""
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "sitecustomize.py").write_text("import torch\ntorch.set_flush_denormal(True)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "installed"), *sys.path]))
    newcomer.station.register("base", newcomer.prover)
    report = newcomer.inspect(newcomer.work.without("replay"))
    alone(report, "device.arithmetic")
    assert report["findings"][0]["severity"] == "warning"
    assert [each["status"] for each in report["chips"][0]["snapshots"]] == ["unverified"]
