"""Recordings without a manifest: what is whole of them is declared, and they themselves are left alone."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from support.untrained_transcripts import UEID

from prover.keeping import archive as archives
from prover.keeping.archive import Archive
from prover.keeping.unfinished_recordings import close_copy, progress, recordings
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import bytes_digest
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.writer import TranscriptWriter


def begin(path: Path, segment_steps: int = 3) -> TranscriptWriter:
    return TranscriptWriter(path, draft={"name": path.name}, key=SigningKey.generate(), segment_steps=segment_steps)


def step(writer: TranscriptWriter, snapshots: list[tuple[bytes, int, int]] | None = None) -> None:
    writer.append_step(
        kind="step" if writer.steps else "init", tape=writer.put_tape(b"no tape"), values=[], host=[], rng={},
        state=bytes_digest(bytes([writer.steps % 256])), checksums=b"", rounding=b"log",
        batch={"x": torch.arange(4) + writer.steps}, snapshots=snapshots or [],
    )  # fmt: skip


def contents(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def test_whole_steps_of_a_recording_make_a_transcript(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    for _ in range(5):
        step(writer)
    before = contents(tmp_path / "run")
    assert list(recordings(tmp_path, 3)) == [tmp_path / "run"]
    assert close_copy(tmp_path / "run", tmp_path / ".open" / "copy", SigningKey.generate())
    copy = Transcript.open(tmp_path / ".open" / "copy")
    assert (copy.steps, copy.manifest.complete, copy.manifest.head) == (5, False, writer.head.hex())
    assert contents(tmp_path / "run") == before
    step(writer)
    writer.close()
    assert Transcript.open(tmp_path / "run").steps == 6
    assert Transcript.open(tmp_path / ".open" / "copy").steps == 5
    assert list(recordings(tmp_path, 3)) == []


def test_a_recording_that_goes_on_meanwhile(tmp_path: Path) -> None:
    """A writer makes steps and segments as fast as it can; each copy is a transcript all the same, or there is none."""
    writer = begin(tmp_path / "run", segment_steps=2)
    step(writer)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set() and writer.steps < 400:
            step(writer)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        made = [close_copy(tmp_path / "run", tmp_path / str(number), SigningKey.generate()) for number in range(8)]
    finally:
        stop.set()
        thread.join()
    steps = [Transcript.open(tmp_path / str(number)).steps for number, good in enumerate(made) if good]
    assert len(steps) >= 4
    assert steps == sorted(steps)


def test_snapshots_of_a_recording_are_explained_by_name_or_history(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    draft = writer.draft_digest
    step(writer)
    first = writer.head
    step(writer, [(UEID, 7, 3)])
    archive = Archive(tmp_path)
    assert archive.transcripts() == []
    found = archive.explain(UEID, 7)
    assert found is not None
    assert found[1:] == (1, 3)
    # A crash came between the chip's signature and the note: the history that the chip signed is this run's.
    assert archive.explain(UEID, 8, 1, 5, first) == (found[0], 1, 5)
    assert archive.explain(UEID, 9, 2, 4, writer.head) == (found[0], 2, 4)
    assert archive.explain(UEID, 9, 0, 0, draft) == (found[0], 0, 0)
    for place in ((1, 5, draft), (7, 0, first), (-1, -1, b"")):
        assert archive.explain(UEID, 10, *place) is None
    assert {piece.path for piece in archive.pieces(found[0])} >= {"manifest.json", "draft.cbor"}
    assert [declared.id for declared in archive.transcripts()] == [found[0]]


def test_later_steps_are_declared_when_they_are_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "REFRESH_SECONDS", 0.0)
    writer = begin(tmp_path / "run")
    archive = Archive(tmp_path)
    identifiers = []
    for number in range(6):
        step(writer, [(UEID, number, 0)])
        found = archive.explain(UEID, number, number, 0, b"")
        assert found is not None
        identifiers.append(found[0])
    assert len(set(identifiers)) == 6
    for identifier in identifiers[-archives.KEPT_VERSIONS :]:  # a Verifier may still be fetching an older one
        assert next(iter(archive.pieces(identifier))).path == "manifest.json"
    assert progress(tmp_path / "run") == ("00000000.cbor.zst", "00000003.cbor.zst")
    writer.close()
    (declared,) = archive.transcripts()
    assert declared.path == tmp_path / "run"
    assert archive.explain(UEID, 2) == (declared.id, 2, 0)
