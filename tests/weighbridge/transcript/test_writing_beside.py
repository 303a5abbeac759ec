"""Segments and checkpoints that are written while the program goes on."""

import threading
from pathlib import Path

import pytest
import torch
from support.untrained_transcripts import append, start

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.errors import TranscriptError, UsageError
from weighbridge.transcript import journal
from weighbridge.transcript import writer as writer_module
from weighbridge.transcript.placing import Files
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.recovery import recover
from weighbridge.transcript.state import Checkpoint, checkpoint_digest
from weighbridge.transcript.steps import steps_path
from weighbridge.transcript.writer import TranscriptWriter


def large(step: int) -> Checkpoint:
    """A state for which a thread is worth while."""
    return Checkpoint(step, {"a": torch.full((5 << 20,), step, dtype=torch.uint8)}, [], {})


def write(path: Path, *, background: bool, steps: int = 3) -> TranscriptWriter:
    writer = start(path)
    writer.background = background
    for step in range(steps):
        append(writer, [], state=checkpoint_digest(large(step + 1)))
        writer.checkpoint(large(step + 1))
    return writer


def test_the_files_are_those_that_are_written_at_once(tmp_path):
    files = []
    for background in (False, True):
        run = tmp_path / str(background)
        write(run, background=background).close()
        files.append(Transcript.open(run).manifest.files)
        assert not (run / "journal").exists()
    assert files[0] == files[1]
    assert Transcript.open(tmp_path / "True").checkpoint(3).storages["a"][0] == 3


def test_what_could_not_be_written_is_told_by_the_next_call(tmp_path):
    """The steps stay in the journal, so nothing is lost that was whole."""
    writer = write(tmp_path / "run", background=True, steps=1)
    (tmp_path / "run" / "checkpoints" / "00000002.safetensors" / "taken").mkdir(parents=True)
    append(writer, [], state=checkpoint_digest(large(2)))
    writer.checkpoint(large(2))
    with pytest.raises(TranscriptError, match="cannot write checkpoints/00000002"):
        writer.settle()
    append(writer, [])
    writer.close()
    assert Transcript.open(tmp_path / "run").steps == 3
    assert Transcript.open(tmp_path / "run").checkpoint_steps == [1]


def test_a_segment_that_could_not_be_written_is_written_later(tmp_path):
    writer = write(tmp_path / "run", background=True, steps=1)
    place = tmp_path / "run" / steps_path(1)
    (place / "taken").mkdir(parents=True)
    append(writer, [], state=checkpoint_digest(large(2)))
    writer.checkpoint(large(2))
    with pytest.raises(TranscriptError, match="cannot write steps/00000001"):
        writer.checkpoint(large(2))
    assert writer.durable == 1
    (place / "taken").rmdir()
    place.rmdir()
    writer.checkpoint(large(2))
    writer.close()
    assert Transcript.open(tmp_path / "run").checkpoint_steps == [1, 2]


def test_another_state_is_told_too(tmp_path):
    writer = write(tmp_path / "run", background=True, steps=1)
    append(writer, [])
    writer.checkpoint(large(2))
    with pytest.raises(UsageError, match="not the state after step 1"):
        writer.close()


def test_the_first_checkpoint_is_there_before_any_step_that_needs_it(tmp_path, monkeypatch):
    """Though the thread that writes files beside the program does not get to run."""
    runs = threading.Event()

    def held(files, checkpoint, state):
        assert threading.current_thread() is threading.main_thread() or runs.wait(60)
        journal.put_checkpoint(files, checkpoint, state)

    monkeypatch.setattr(writer_module, "put_checkpoint", held)
    writer = write(tmp_path / "run", background=True, steps=1)
    try:
        recover(tmp_path / "run", key=SigningKey.generate())
    finally:
        runs.set()
        writer.settle()
    assert Transcript.open(tmp_path / "run").checkpoint_steps == [1]


def test_a_segment_is_whole_though_its_journal_cannot_be_removed(tmp_path, monkeypatch):
    """One of its files stays and the other one is gone, after its content was made durable."""
    writer, flush = start(tmp_path / "run"), Files.flush
    append(writer, [])
    stays, gone = (tmp_path / "run" / journal.journal_path(step) for step in range(2))

    def then(files):
        flush(files)
        for each in (stays, gone):
            each.unlink()
        (stays / "taken").mkdir(parents=True)

    with monkeypatch.context() as once:
        once.setattr(Files, "flush", then)
        append(writer, [])  # which ends the segment
    assert (writer.steps, writer.durable) == (2, 2)
    append(writer, [])
    writer.close()
    assert Transcript.open(tmp_path / "run").steps == 3
    assert not (tmp_path / "run" / "journal").exists()
