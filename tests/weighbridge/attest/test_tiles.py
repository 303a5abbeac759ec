"""Directories of tiles: bundles round trip, and whatever contradicts the entries is named."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.attest import tiles
from weighbridge.attest.tiles import TilesError
from weighbridge.core import merkle
from weighbridge.core.errors import UsageError, WeighbridgeError

ENTRIES = [f"entry {number}".encode() for number in range(600)]


def test_paths_of_the_specification() -> None:
    assert tiles.tile_path(0, 1234067) == "tile/0/x001/x234/067"
    assert tiles.tile_path(None, 5, 112) == "tile/entries/005.p/112"
    # A tree of 70,000: 273 full tiles and one of 112; one full and one of 17; one of 1.
    shapes = list(tiles.tiles_of(70_000))
    assert [sum(level == each for level, _, _ in shapes) for each in range(3)] == [274, 2, 1]
    assert [shape for shape in shapes if shape[2] < 256] == [(0, 273, 112), (1, 1, 17), (2, 0, 1)]
    assert list(tiles.tiles_of(256)) == [(0, 0, 256), (1, 0, 1)]
    assert list(tiles.tiles_of(0)) == []


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_bundles_round_trip(entries: list[bytes]) -> None:
    """decode_bundle(encode_bundle(e)) == e."""
    assert tiles.decode_bundle(tiles.encode_bundle(entries)) == entries


@given(st.binary(max_size=300))
def test_hostile_bytes_raise_only_our_errors(data: bytes) -> None:
    """encode_bundle(decode_bundle(d)) == d for every d that is accepted."""
    with suppress(WeighbridgeError):
        assert tiles.encode_bundle(tiles.decode_bundle(data)) == data


def test_an_entry_too_long_for_its_length_is_refused() -> None:
    with pytest.raises(UsageError):
        tiles.encode_bundle([bytes(tiles.MAX_ENTRY_BYTES + 1)])


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 600])
def test_a_directory_round_trips(tmp_path: Path, size: int) -> None:
    """read(write(entries)) == entries, and every tile follows from them."""
    tiles.write(tmp_path / "log", ENTRIES[:size], b"checkpoint", b"head")
    assert tiles.read(tmp_path / "log", size) == (ENTRIES[:size], [])
    with pytest.raises(UsageError):
        tiles.write(tmp_path / "log", [], b"", b"")


def test_the_tiles_are_what_the_specification_says(tmp_path: Path) -> None:
    """Tile n of level l, hash i is the root over the leaves from (256 n + i) 256^l on."""
    hashes = [merkle.leaf_hash(each) for each in ENTRIES]
    content = dict(tiles.files(ENTRIES))
    assert set(content) == {
        *(f"tile/{kind}/{number}" for kind in ("entries", "0") for number in ("000", "001", "002.p/88")),
        "tile/1/000.p/2",
    }
    assert content["tile/0/001"] == b"".join(hashes[256:512])
    assert content["tile/0/002.p/88"] == b"".join(hashes[512:])
    assert content["tile/1/000.p/2"] == merkle.root(hashes[:256]) + merkle.root(hashes[256:512])


def test_a_log_may_be_kept_in_full_tiles_where_a_smaller_one_is_asked_for(tmp_path: Path) -> None:
    tiles.write(tmp_path / "log", ENTRIES[:512], b"", b"")
    assert tiles.read(tmp_path / "log", 300) == (ENTRIES[:300], ["tile/1/000.p/1"])


@pytest.mark.parametrize("kept", [299, 301])
def test_a_bundle_is_as_long_as_its_name_says(tmp_path: Path, kept: int) -> None:
    """Cut off, or with entries behind the last one for which no root answers."""
    tiles.write(tmp_path / "log", ENTRIES[:300], b"", b"")
    place = tmp_path / "log" / "tile/entries/001.p/44"
    place.write_bytes(tiles.encode_bundle(ENTRIES[256:kept]))
    with pytest.raises(TilesError):
        tiles.read(tmp_path / "log", 300)


def test_tiles_of_another_tree_are_named(tmp_path: Path) -> None:
    tiles.write(tmp_path / "log", ENTRIES, b"", b"")
    tiles.write(tmp_path / "other", ENTRIES[::-1], b"", b"")
    (tmp_path / "log/tile/0").rename(tmp_path / "log/was")
    (tmp_path / "other/tile/0").rename(tmp_path / "log/tile/0")
    entries, wrong = tiles.read(tmp_path / "log", 600)
    assert (entries, wrong) == (ENTRIES, ["tile/0/000", "tile/0/001", "tile/0/002.p/88"])


@pytest.mark.parametrize("kind", ["link", "pipe", "endless"])
def test_only_regular_files_are_tiles(tmp_path: Path, kind: str) -> None:
    """A pipe would hold the reader for ever, a link to a device fill its memory."""
    tiles.write(tmp_path / "log", ENTRIES[:3], b"", b"")
    place = tmp_path / "log/tile/entries/000.p/3"
    place.rename(tmp_path / "moved")
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(tmp_path / "moved" if kind == "link" else "/dev/zero")
    with pytest.raises(TilesError):
        tiles.read(tmp_path / "log", 3)


def test_altered_and_missing_tiles_are_named(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    tiles.write(directory, ENTRIES, b"", b"")
    tile = directory / "tile/0/001"
    content = tile.read_bytes()
    tile.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (directory / "tile/1/000.p/2").unlink()
    assert tiles.read(directory, 600)[1] == ["tile/0/001", "tile/1/000.p/2"]
    bundle = directory / "tile/entries/001"
    bundle.write_bytes(bundle.read_bytes()[:-1])
    with pytest.raises(TilesError):
        tiles.read(directory, 600)
    bundle.unlink()
    with pytest.raises(TilesError):
        tiles.read(directory, 600)
