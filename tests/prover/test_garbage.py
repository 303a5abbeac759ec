"""The Recorder collects garbage between steps, without walking what was there before it, and puts that back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from prover import Recorder


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """The tests' own objects are frozen (`conftest`)."""
    yield
    gc.freeze()


def walked(thing: object) -> bool:
    """True if a collection would look at an object."""
    return any(each is thing for each in gc.get_objects())


def record(path: Path, thing: object) -> list[bool]:
    """Returns in which of five steps a collection would look at an object."""
    found = []
    with Recorder(path, seed=1) as recorder:
        x = torch.zeros(3)
        recorder.attach(x)
        for _ in range(5):
            with recorder.step():
                found.append(walked(thing))
                x.add_(1)
    return found


def test_what_was_there_is_frozen_as_long_as_it_records(tmp_path: Path) -> None:
    gc.unfreeze()
    thing: list[int] = []
    assert record(tmp_path / "run", thing) == [False] * 5
    assert walked(thing)


def test_a_program_that_froze_objects_itself_is_left_alone(tmp_path: Path) -> None:
    frozen: list[int] = []
    gc.freeze()
    later: list[int] = []
    assert record(tmp_path / "one", frozen) == [False] * 5
    assert record(tmp_path / "two", later) == [True] * 5
    assert not walked(frozen)
