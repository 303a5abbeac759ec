"""Fetching transcripts: honest pieces arrive whole, hostile ones touch nothing outside the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.damage import flipped
from support.served_pieces import Piece, pieces
from support.untrained_transcripts import write_transcript

from verifier.store.cache import Cache, FetchLimits
from verifier.store.cache_room import StorageError
from weighbridge.core.errors import TranscriptError, WeighbridgeError
from weighbridge.transcript.reader import Transcript


def test_a_fetched_transcript_is_whole_and_not_fetched_twice(tmp_path: Path) -> None:
    identifier = write_transcript(tmp_path / "run")
    cache = Cache(tmp_path / "cache")
    transcript = cache.get(identifier, pieces(tmp_path / "run"))
    assert Transcript.open(transcript.path).batch(1)["x"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [identifier]
    assert cache.get(identifier, []).digest == identifier


def test_a_copy_that_was_damaged_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    identifier = write_transcript(tmp_path / "run")
    cache = Cache(tmp_path / "cache")
    cache.get(identifier, pieces(tmp_path / "run"))
    (tmp_path / "cache" / identifier / "draft.cbor").write_bytes(b"x")
    assert cache.get(identifier, pieces(tmp_path / "run")).digest == identifier


def test_a_directory_that_is_gone_is_an_error_that_says_so(tmp_path: Path) -> None:
    identifier = write_transcript(tmp_path / "run")
    cache = Cache(tmp_path / "cache")
    (tmp_path / "cache").rmdir()
    with pytest.raises(StorageError, match="cannot be stored"):
        cache.get(identifier, pieces(tmp_path / "run"))


def test_what_an_interrupted_fetch_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "cache" / "partial-xyz" / "steps").mkdir(parents=True)
    Cache(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    "path",
    [
        "../evil",
        "/etc/evil",
        "steps/../../evil",
        "a\\..\\evil",
        "",
        ".hidden",
        "a//b",
        "a/b/c/d/e",
        "nul\x00",
        "x" * 300,
    ],
)
def test_paths_that_lead_elsewhere_are_refused(tmp_path: Path, path: str) -> None:
    identifier = write_transcript(tmp_path / "run")
    hostile = [*pieces(tmp_path / "run"), Piece(path, 0, b"evil", True)]
    with pytest.raises(TranscriptError) as caught:
        Cache(tmp_path / "cache").get(identifier, hostile)
    assert caught.value.reason == "transcript.fetch.path"
    assert list((tmp_path / "cache").iterdir()) == []
    assert not list(tmp_path.rglob("evil"))


def test_a_file_that_comes_twice_or_lies_under_another_file_is_refused(tmp_path: Path) -> None:
    identifier = write_transcript(tmp_path / "run")
    for again in ("manifest.json", "manifest.json/below"):
        with pytest.raises(TranscriptError) as caught:
            Cache(tmp_path / "cache").get(identifier, [*pieces(tmp_path / "run"), Piece(again, 0, b"", True)])
        assert caught.value.reason == "transcript.fetch.path"


def test_pieces_out_of_order_or_cut_short_are_refused(tmp_path: Path) -> None:
    identifier = write_transcript(tmp_path / "run")
    honest = pieces(tmp_path / "run")
    long = next(place for place, piece in enumerate(honest) if not piece.last)
    swapped = [*honest[:long], honest[long + 1], honest[long], *honest[long + 2 :]]
    for hostile in (swapped, honest[: long + 1], honest[:long] + honest[long + 1 :]):
        with pytest.raises(TranscriptError) as caught:
            Cache(tmp_path / "cache").get(identifier, hostile)
        assert caught.value.reason == "transcript.fetch.order"


def test_sizes_are_limited(tmp_path: Path) -> None:
    identifier = write_transcript(tmp_path / "run")
    for limits in (FetchLimits(total=500), FetchLimits(files=2)):
        with pytest.raises(TranscriptError) as caught:
            Cache(tmp_path / "cache", limits).get(identifier, pieces(tmp_path / "run"))
        assert caught.value.reason == "transcript.fetch.oversized"


def test_another_transcript_than_the_one_named_is_refused(tmp_path: Path) -> None:
    identifier = write_transcript(tmp_path / "run")
    write_transcript(tmp_path / "other", name="other")
    for name, sent in ((identifier, "other"), ("../" + identifier, "run"), ("A" * 64, "run")):
        with pytest.raises(TranscriptError) as caught:
            Cache(tmp_path / "cache").get(name, pieces(tmp_path / sent))
        assert caught.value.reason == "transcript.fetch.id"


def test_an_altered_missing_or_foreign_file_is_named(tmp_path: Path) -> None:
    identifier = write_transcript(tmp_path / "run")
    honest = pieces(tmp_path / "run", size=1 << 20)
    altered = [Piece(p.path, 0, flipped(p.data) if p.path == "draft.cbor" else p.data, True) for p in honest]
    missing = [p for p in honest if p.path != "draft.cbor"]
    foreign = [*honest, Piece("notes.txt", 0, b"hello", True)]
    for sent, reason in ((altered, "altered"), (missing, "missing"), (foreign, "unlisted")):
        with pytest.raises(TranscriptError) as caught:
            Cache(tmp_path / "cache").get(identifier, sent)
        assert caught.value.reason == f"transcript.file.{reason}"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.builds(Piece, st.text(max_size=12), st.integers(0, 4), st.binary(max_size=8), st.booleans()), max_size=5
    )
)
def test_hostile_pieces_raise_only_our_errors(tmp_path: Path, hostile: list[Piece]) -> None:
    with pytest.raises(WeighbridgeError):
        Cache(tmp_path / "cache").get("a" * 64, hostile)
    assert list((tmp_path / "cache").iterdir()) == []
