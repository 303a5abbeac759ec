"""The Prover's archive: what it declares, explains and hands out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.untrained_transcripts import UEID, write_transcript

from prover.keeping.archive import CHUNK, Archive
from weighbridge.core.errors import NotFoundError, UsageError


def test_it_explains_exactly_the_snapshots_in_the_step_records(tmp_path: Path) -> None:
    first = write_transcript(tmp_path / "a", name="a")
    write_transcript(tmp_path / "deep" / "er" / "b", name="b", ueid=bytes(17))
    archive = Archive(tmp_path)
    assert sorted(declared.name for declared in archive.transcripts()) == ["a", "b"]
    assert archive.explain(UEID, 11) == (first, 1, 4)
    assert archive.explain(UEID, 13) is None
    assert archive.explain(bytes(16) + b"\x09", 11) is None


def test_a_run_is_declared_once_it_has_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "unfinished" / "steps").mkdir(parents=True)
    archive = Archive(tmp_path)
    assert archive.transcripts() == []
    identifier = write_transcript(tmp_path / "later")
    assert [declared.id for declared in archive.transcripts()] == [identifier]


def test_pieces_are_the_files_manifest_first_and_no_link_is_followed(tmp_path: Path) -> None:
    identifier = write_transcript(tmp_path / "run")
    (tmp_path / "run" / "large").write_bytes(os.urandom(2 * CHUNK + 5))
    (tmp_path / "run" / "empty").touch()
    (tmp_path / "secret").write_text("not for the Verifier")
    (tmp_path / "run" / "link").symlink_to(tmp_path / "secret")
    pieces = list(Archive(tmp_path).pieces(identifier))
    assert pieces[0].path == "manifest.json"
    got: dict[str, bytes] = {}
    for piece in pieces:
        assert len(piece.data) <= CHUNK
        assert piece.offset == len(got.get(piece.path, b""))
        got[piece.path] = got.get(piece.path, b"") + piece.data
    files = {str(path.relative_to(tmp_path / "run")): path for path in (tmp_path / "run").rglob("*") if path.is_file()}
    del files["link"]
    assert got == {name: path.read_bytes() for name, path in files.items()}
    assert [piece.path for piece in pieces if piece.last] == ["manifest.json", *sorted(set(files) - {"manifest.json"})]


def test_damage_in_one_transcript_hides_no_other_snapshot(tmp_path: Path) -> None:
    damaged = write_transcript(tmp_path / "damaged")
    whole = write_transcript(tmp_path / "whole", ueid=bytes(17))
    (tmp_path / "damaged" / "steps" / "00000002.cbor.zst").write_bytes(b"rubbish")
    (tmp_path / "damaged" / "draft.cbor").write_bytes(b"rubbish")
    (tmp_path / "hollow").mkdir()
    (tmp_path / "hollow" / "manifest.json").write_bytes(b"{}")
    archive = Archive(tmp_path)
    assert archive.explain(UEID, 11) == (damaged, 1, 4)
    assert archive.explain(UEID, 12) is None
    assert archive.explain(bytes(17), 12) == (whole, 2, 4)
    assert sum(bool(declared.damage) for declared in archive.transcripts()) == 2


def test_unknown_transcripts_and_missing_directories_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        next(Archive(tmp_path).pieces("../../etc/passwd"))
    assert caught.value.reason == "transcript.unknown"
    with pytest.raises(UsageError, match="not a directory"):
        Archive(tmp_path / "none")
