"""The store of shared recordings: each is made once, and no test changes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.recording_store import RecordingStore


def test_a_recording_is_made_once_and_copied(tmp_path: Path) -> None:
    made = []

    def make(path: Path) -> None:
        made.append(path)
        path.mkdir()
        (path / "file").write_text("content")

    run = RecordingStore(tmp_path / "store").get("recipe", make, 1)
    other_worker = RecordingStore(tmp_path / "store")
    assert other_worker.get("recipe", make, 1) == run
    assert made == [run]
    copied = other_worker.copy("recipe", make, tmp_path / "copy", 1)
    (copied / "file").write_text("changed")
    assert other_worker.get("recipe", make, 2) != run
    assert (run / "file").read_text() == "content"


def test_a_test_that_changes_a_shared_recording_is_noticed(tmp_path: Path) -> None:
    store = RecordingStore(tmp_path)
    run = store.get("recipe", lambda path: path.mkdir())
    (run / "stray").write_text("left here by a test")
    with pytest.raises(RuntimeError, match="changed the shared recording 'recipe'"):
        store.get("recipe", lambda path: path.mkdir())


def test_what_a_killed_worker_left_is_recorded_anew(tmp_path: Path) -> None:
    store = RecordingStore(tmp_path)

    def killed(path: Path) -> None:
        path.mkdir()
        (path / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.get("recipe", killed)
    run = store.get("recipe", lambda path: path.mkdir())
    assert not list(run.iterdir())
