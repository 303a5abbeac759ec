"""Fixtures of tests that inspect one clean run, or what was made of it: import them where they are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import clean_runs
from support.recording_store import RecordingStore
from support.written_chips import Bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A Verifier and its files; runs go to `bench.runs`."""
    with Bench(tmp_path_factory.mktemp("bench")) as bench:
        yield bench


@pytest.fixture(scope="module")
def honest(bench: Bench, recordings: RecordingStore) -> Path:
    """A run of the bench with nothing against it."""
    return clean_runs.honest(recordings, bench.runs / "honest")
