"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import fcntl
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from support import workers_here
from support.recording_store import RecordingStore
from support.tiers import Tiers

from prover import Recorder
from prover.recipes.digits import Digits
from prover.recipes.recipe import commit, train
from weighbridge.cli.demo.cheat import CheatingRecorder, other_records

# Property tests run beside other work, so neither an example nor the drawing of one has a deadline.
settings.register_profile("beside-others", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("beside-others")

SMALL = Digits(width=4, batch_size=8)
STEPS = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-goldens` writes the golden files anew; look at what changed before committing it."""
    parser.addoption("--update-goldens", action="store_true", help="write golden files instead of comparing with them")
    parser.addoption("--tier", choices=("quick", "slow", "all"), default="all", help="see tests/support/tiers.py")
    parser.addoption("--update-durations", action="store_true", help="write what tests took to tests/durations.json")
    parser.addoption("--apart", action="store_true", help="give every replay of tests/findings a process of its own")


def pytest_configure(config: pytest.Config) -> None:
    """Tells the tests of findings where their replays run, and chooses the tier."""
    workers_here.allowed = not config.getoption("--apart")
    config.pluginmanager.register(Tiers(config.getoption("--tier"), config.getoption("--update-durations")))


def pytest_collection_finish() -> None:
    """What was imported is no garbage; each recording would look at all of it again, for a third of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _what_a_module_imported() -> Iterator[None]:
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with `goldens/<name>` beside the test's file, or writes it there."""

    def compare(name: str, text: str) -> None:
        path = request.path.parent / "goldens" / name
        if request.config.getoption("--update-goldens"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"differs from {path.name}; pytest --update-goldens writes it anew"

    return compare


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests marked `gpu` where there is none; `make gpu` runs them where there is."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> RecordingStore:
    """The recordings that tests of this session share."""
    base = tmp_path_factory.getbasetemp()
    return RecordingStore((base if worker_id == "master" else base.parent) / "recordings")


@pytest.fixture(scope="session")
def sealed_image(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The image of a sealed worker, made once: it takes minutes. Tests change copies."""
    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "sealed"
    root.mkdir(exist_ok=True)
    with (root / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "image" / "image.cbor").exists():
            from weighbridge.execution.sealed.building import build  # it is imported where an image is needed

            build(root / "image")
    return root / "image"


@pytest.fixture(scope="session")
def honest_run(recordings: RecordingStore) -> Path:
    """A small declared and honest transcript; do not change it, copy it."""

    def make(path: Path) -> None:
        data = commit(SMALL, seed=3, steps=STEPS)
        with Recorder(path, seed=3, data=data, checkpoint_every=2) as recorder:
            train(SMALL, recorder, steps=STEPS, seed=3)

    return recordings.get("honest", make, SMALL, STEPS)


@pytest.fixture(scope="session")
def altered_run(recordings: RecordingStore) -> Path:
    """A small transcript whose training saw other data than it declares; do not change it, copy it."""

    def make(path: Path) -> None:
        data = commit(SMALL, seed=3, steps=STEPS)
        with CheatingRecorder(path, seed=3, data=data, checkpoint_every=2) as recorder:
            recorder.substitute = other_records(SMALL)
            train(SMALL, recorder, steps=STEPS, seed=3)

    return recordings.get("altered", make, SMALL, STEPS)
