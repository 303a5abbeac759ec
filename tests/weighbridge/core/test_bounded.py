import contextlib
import math
import os

import cbor2
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core.bounded import (
    compress,
    decode_cbor,
    decode_cbor_sequence,
    decompress,
    file_digest,
    read_file,
    walk_files,
)
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import FormatError, TranscriptError

integers = st.integers(-(2**63), 2**64 - 1)
scalars = st.none() | st.booleans() | integers | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)


def same(first, second):
    return type(first) is type(second) and (
        first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
        if isinstance(first, dict)
        else len(first) == len(second) and all(map(same, first, second))
        if isinstance(first, list)
        else first == second and (not isinstance(first, float) or math.copysign(1, first) == math.copysign(1, second))
    )


@given(values)
def test_cbor_round_trip(value):
    """decode_cbor(cbor(v)) is v, and every number keeps its type and sign."""
    assert same(decode_cbor(cbor(value)), value)


@given(st.lists(values, min_size=1, max_size=5))
def test_cbor_sequence_round_trip(items):
    """decode_cbor_sequence of joined encodings is the list of values."""
    data = b"".join(map(cbor, items))
    assert same(list(decode_cbor_sequence(data, max_length=5)), items)


def test_special_floats_survive():
    found = decode_cbor(cbor([float("nan"), float("inf"), float("-inf"), -0.0, 1.0, 1]))
    assert math.isnan(found[0])
    assert found[1:3] == [math.inf, -math.inf]
    assert math.copysign(1, found[3]) == -1
    assert [type(value) for value in found[4:]] == [float, int]


@given(st.binary(max_size=60))
def test_hostile_cbor(data):
    """Any bytes are refused with a FormatError, or are the deterministic encoding of what they decode to."""
    try:
        value = decode_cbor(data)
    except FormatError:
        return
    assert cbor(value) == data


@pytest.mark.parametrize(
    "data",
    [
        "",
        "1801",
        "190001",
        "fb3ff0000000000000",
        "fa7fc00000",
        "f97e01",
        "9f01ff",
        "bf6161 01ff",
        "5f4101ff",
        "a2616101616102",
        "a2616201616102",
        "a10102",
        "0101",
        "9b0000ffffffffffff",
        "5bffffffffffffffff",
        "61ff",
        "c101",
        "c249010000000000000000",
        "c5821b0000ffffffffffff01",
        "d8236161",
        "d81c81d81d00",
        "d9d9f701",
        "d9010280",
        "d8ff01",
        "81" * 17 + "01",
        "81" * 100_000,
    ],
)
def test_cbor_that_is_not_plain_and_deterministic(data):
    with pytest.raises(FormatError):
        decode_cbor(bytes.fromhex(data))


def test_depth_and_items_are_limited():
    assert decode_cbor(b"\x81" * 15 + b"\x01") is not None
    with pytest.raises(FormatError):
        decode_cbor(b"\x81\x81\x01", max_depth=1)
    assert list(decode_cbor_sequence(b"\x01\x02", max_length=2)) == [1, 2]
    for data, most in ((b"\x01\x02\x03", 2), (b"\x01\x02", 1), (b"", 1)):
        with pytest.raises(FormatError):
            list(decode_cbor_sequence(data, max_length=most))


@given(st.binary(min_size=1, max_size=300))
def test_zstd_round_trip(data):
    """decompress(compress(d)) is d when the limit allows it, and refused when it does not."""
    packed = compress(data)
    assert decompress(packed, max_bytes=len(data)) == data
    with pytest.raises(FormatError):
        decompress(packed, max_bytes=len(data) - 1)
    for other in (packed[:-1], packed + b"\x00", packed + packed):
        with pytest.raises(FormatError):
            decompress(other, max_bytes=1000)


@given(st.binary(max_size=60), st.binary(max_size=40), st.integers(0, 50))
def test_hostile_zstd(data, content, place):
    packed = bytearray(compress(content))
    packed[place % len(packed)] ^= 0x55
    for other in (data, bytes(packed), b"\x28\xb5\x2f\xfd" + data):
        with contextlib.suppress(FormatError):
            assert len(decompress(other, max_bytes=1000)) <= 1000


def test_zstd_bombs_are_refused_before_they_go_off():
    with pytest.raises(FormatError):
        decompress(zstandard.ZstdCompressor().compress(bytes(1 << 26)), max_bytes=1 << 20)
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 26))
    with pytest.raises(FormatError):
        decompress(hidden, max_bytes=1 << 20)
    with pytest.raises(FormatError):
        decompress(compress(b""), max_bytes=1)
    # A frame header that promises less than the frame holds.
    liar = bytearray(compress(bytes(1 << 16)))
    honest = zstandard.get_frame_parameters(bytes(liar)).content_size
    assert honest == 1 << 16
    for place in range(5, 9):
        changed = liar.copy()
        changed[place] ^= 0x01
        with contextlib.suppress(FormatError):
            assert len(decompress(bytes(changed), max_bytes=1 << 20)) <= 1 << 20


def test_only_regular_files_are_read(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    assert read_file(tmp_path / "file", max_bytes=3) == b"abc"
    assert file_digest(tmp_path / "file") == (3, bytes_digest(b"abc"))
    for name, code in (
        ("link", "altered"),
        ("pipe", "altered"),
        ("folder", "altered"),
        ("file/below", "altered"),
        ("none", "missing"),
    ):
        for read in (lambda path: read_file(path, max_bytes=9), file_digest):
            with pytest.raises(TranscriptError) as error:
                read(tmp_path / name)
            assert error.value.reason == f"transcript.file.{code}"
    with pytest.raises(TranscriptError) as error:
        read_file(tmp_path / "file", max_bytes=2)
    assert error.value.reason == "transcript.file.oversized"


def test_walk_lists_everything_but_follows_nothing(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_bytes(b"x")
    (tmp_path / "a/loop").symlink_to(tmp_path)
    assert {name for name, _ in walk_files(tmp_path, max_files=9)} == {"a/b/file", "a/loop"}
    with pytest.raises(TranscriptError):
        list(walk_files(tmp_path, max_files=3))
    with pytest.raises(TranscriptError):
        list(walk_files(tmp_path / "none", max_files=3))


def test_cbor_of_other_libraries_without_tags_is_read():
    assert decode_cbor(cbor2.dumps({"b": 1, "a": [1, 2.5]}, canonical=True)) == {"b": 1, "a": [1, 2.5]}


def test_what_a_decoder_says_of_hostile_cbor_is_short() -> None:
    """It quotes a key that occurs twice, however long; a worker's answer has room for a few words."""
    key = cbor2.dumps("\x01" * (1 << 16))
    with pytest.raises(FormatError, match="Duplicate") as caught:
        decode_cbor(b"\xa2" + (key + b"\x01") * 2)
    assert len(str(caught.value)) < 400
