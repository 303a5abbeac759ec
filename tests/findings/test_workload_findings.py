"""What each finding about a chip's workload takes to appear alone: real trainings on real chips, one after another.

No chip's key is known here. What a workload may do is end badly, begin late, go on elsewhere, or show the same twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.exactly import alone, exactly, found
from support.shared_work import SharedWork
from support.station import Station
from support.training_on_chip import STEPS, TrainingOnChip, train

from firmware_sim import Shim
from verifier.store.cache import Cache

CHIPS = ("honest", "begun", "loading", "crashing", "repeating", "shared")


@dataclass(frozen=True)
class Bench:
    """The station, and what inspections share."""

    station: Station
    prover: str
    work: SharedWork
    cache: Cache

    def attach(self, name: str, kind: type[Shim] = Shim) -> Shim:
        """A shim on a chip."""
        return kind.connect(self.station.chips[name].socket)

    def run(self, name: str) -> Path:
        """Directory of a transcript."""
        return self.station.runs / name

    def inspect(self, name: str) -> dict[str, Any]:
        """Inspects one chip."""
        self.station.register(name, self.prover)
        return self.station.inspect(name, cache=self.cache, shared=self.work)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("station")
    with Station(root) as station:
        for name in CHIPS:
            station.chip(name, hold=0 if name == "loading" else 64)
        yield Bench(station, station.prover(), SharedWork(), Cache(root / "cache"))


def test_an_honest_run_has_no_finding(bench: Bench) -> None:
    """Its interrupt comes between two steps; in the middle of one, and on a chip with other runs, see below."""
    with bench.attach("honest") as chip, TrainingOnChip(bench.run("honest"), chip, seed=2) as run:
        run.begin()
        for number in range(1, STEPS + 1):
            if number == 3:
                chip.request_snapshot()
            run.step()
    report = bench.inspect("honest")
    assert found(report) == set()
    assert [each["status"] for each in report["chips"][0]["snapshots"]] == ["explained"]


@pytest.mark.finding("snapshot.empty")
def test_a_program_that_had_only_begun(bench: Bench) -> None:
    with bench.attach("begun") as chip:
        chip.request_snapshot()
    alone(bench.inspect("begun"), "snapshot.empty")


@pytest.mark.finding("snapshot.setup")
def test_a_program_that_was_loading_its_weights(bench: Bench) -> None:
    """Weights that are all the same need no origin; this chip waits for no safepoint."""
    with bench.attach("loading") as chip, TrainingOnChip(bench.run("loading"), chip) as run:
        run.begin_with(0.5, before=chip.request_snapshot)
        for _ in range(STEPS):
            run.step()
    alone(bench.inspect("loading"), "snapshot.setup")


def crash(bench: Bench, name: str, seed: int) -> None:
    """A run that ends with an error in its third step, right after a snapshot."""

    def fail() -> None:
        raise MemoryError("of the program's own")

    def run() -> None:
        with bench.attach("crashing") as chip, TrainingOnChip(bench.run(name), chip, seed=seed) as run:
            run.begin()
            run.step()
            run.step()
            chip.request_snapshot()
            run.step(fail)

    with pytest.raises(MemoryError):
        run()


@pytest.fixture(scope="module")
def crashed(bench: Bench) -> None:
    """One crash."""
    crash(bench, "crashed", seed=4)


@pytest.mark.finding("snapshot.tail")
def test_a_crash_in_a_step_with_a_snapshot(bench: Bench, crashed: None) -> None:
    alone(bench.inspect("crashing"), "snapshot.tail")


@pytest.mark.finding("snapshot.tail.many")
def test_crash_after_crash_in_a_step_with_a_snapshot(bench: Bench, crashed: None) -> None:
    crash(bench, "crashed again", seed=5)
    # Each of the two is said, too, and is not evidence against the Prover.
    exactly(bench.inspect("crashing"), "snapshot.tail.many", beside={"snapshot.tail"})


class Repeating(Shim):  # type: ignore[no-untyped-call]
    """Shows the chip, at its second interrupt, what it had shown at the first."""

    def safepoint(self, step: int, op: int, running: bytes, head: bytes, flush: Callable[[], None]) -> int | None:
        index = super().safepoint(step, op, running, head, flush)
        if index is not None:
            self.request_snapshot()
            again = super().safepoint(step, op, running, head, flush)
            assert again is not None
            assert self._note is not None
            self._note(again)  # as of one that was taken without being offered, so the transcript names it
        return index


@pytest.mark.finding("snapshot.position.repeated")
def test_a_run_that_shows_one_position_twice(bench: Bench) -> None:
    with bench.attach("repeating", Repeating) as chip:
        train(bench.run("repeating"), chip)
    alone(bench.inspect("repeating"), "snapshot.position.repeated")


class Relay:
    """A chip link that outlives its shim: the run behind it goes on whenever it has the chip again."""

    def __init__(self) -> None:
        self.shim: Shim | None = None
        self._told: tuple[Any, ...] = (None, None)

    def to(self, shim: Shim) -> None:
        """Goes on with another shim."""
        self.shim = shim
        shim.on_snapshot(*self._told)

    def on_snapshot(self, *told: Any) -> None:
        """See `ChipLink`."""
        self._told = told
        assert self.shim is not None
        self.shim.on_snapshot(*told)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shim, name)


@pytest.mark.finding("chip.time.twice")
def test_two_runs_that_share_the_time_of_a_chip(bench: Bench) -> None:
    """One that gave the chip away and took it back, as if it had been there throughout."""
    relay: Any = Relay()
    with ExitStack() as stack:
        with bench.attach("shared") as chip:
            relay.to(chip)
            run = stack.enter_context(TrainingOnChip(bench.run("before and after"), relay, seed=7))
            run.begin()
            run.step()
            run.step(chip.request_snapshot)
        with bench.attach("shared") as chip:
            train(bench.run("in between"), chip, seed=8)
        with bench.attach("shared") as chip:
            relay.to(chip)
            for tensor in run.tensors():
                tensor.detach()  # a chip knows memory once a kernel has met it
            run.step(chip.request_snapshot)
            run.step()
            stack.close()
    alone(bench.inspect("shared"), "chip.time.twice")
