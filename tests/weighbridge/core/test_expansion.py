"""Few bytes that would become many: what is decoded stays in proportion to what was sent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.peaks import peak

from weighbridge.core import cbor_items
from weighbridge.core.bounded import (
    DEFAULT_LIMITS,
    MAX_ITEMS,
    check_items,
    decode_cbor,
    decode_json,
    decompress,
    expand_cbor,
)
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, TapeError, WeighbridgeError
from weighbridge.transcript.steps import read_records
from weighbridge.transcript.tape import Tape

MIB = 1 << 20
WIRE = 4_000
"""Bytes that an attacker sends."""


def bomb(size: int) -> bytes:
    """A zstd frame of `size` empty arrays, a byte each."""
    return zstandard.ZstdCompressor(level=19).compress(b"\x80" * size)


def padded(size: int) -> bytes:
    """The same with noise, so that the frame has `WIRE` bytes at least: the larger it is, the more it may expand to."""
    noise = cbor(np.random.default_rng(1).bytes(WIRE))
    return zstandard.ZstdCompressor(level=19).compress(b"\x80" * size + noise)


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """Numba and its loop are loaded once in a process; a worker has both before it is asked."""
    check_items(b"\x00" * (MAX_ITEMS + 1), 2 * MAX_ITEMS)


@pytest.mark.parametrize("size", [128 * MIB, 40 * MIB, 5 * MIB, 2 * MIB, MIB])
def test_step_records_that_expand_are_refused_at_once(size: int, tmp_path: Path) -> None:
    """Four kilobytes took four gigabytes and two minutes before what they expand to was limited."""
    for number, packed in enumerate((bomb(size), padded(size))):
        path = tmp_path / f"{number}.cbor.zst"
        path.write_bytes(packed)
        assert len(packed) < WIRE * (2 if size < 128 * MIB else 5)
        with peak() as took, pytest.raises(FormatError):
            read_records(path, DEFAULT_LIMITS)
        assert took.bytes < 200e6
        assert took.seconds < 10  # minutes without the limit, about 1 with it


@pytest.mark.parametrize("size", [256 * MIB, 5 * MIB, (MIB >> 2) - 100])
def test_tapes_that_expand_are_refused_at_once(size: int) -> None:
    """Also one that has as many parts as any tape of that size may have."""
    content = cbor({"nodes": []}).replace(b"\x80", b"\x9a" + size.to_bytes(4, "big") + b"\x80" * size)
    packed = zstandard.ZstdCompressor(level=19).compress(content)
    assert len(packed) < 40_000
    with peak() as took, pytest.raises(WeighbridgeError) as caught:
        Tape.decode(expand_cbor(packed, max_bytes=256 * MIB, max_items=DEFAULT_LIMITS.items))
    assert isinstance(caught.value, FormatError | TapeError)
    assert took.bytes < 200e6
    assert took.seconds < 10  # minutes without the limit, about 1 with it


def test_what_an_honest_run_compresses_well_passes() -> None:
    """The values of many parameters are the same in every step, so records compress a few hundred times."""
    noise = np.random.default_rng(2)
    content = b"".join(cbor([[1e-3] * 3000, noise.bytes(96)]) for _ in range(100))
    packed = zstandard.ZstdCompressor(level=3).compress(content)
    assert len(content) > 100 * len(packed)
    assert expand_cbor(packed, max_bytes=128 * MIB, max_items=DEFAULT_LIMITS.items) == content


def test_expansion_is_limited_by_the_frame() -> None:
    assert len(decompress(bomb(MIB), max_bytes=2 * MIB)) == MIB
    with pytest.raises(FormatError, match="times itself"):
        decompress(bomb(64 * MIB), max_bytes=128 * MIB)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(max_size=300),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


def items(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(items(key) + items(each) for key, each in value.items())
    return 1 + (sum(map(items, value)) if isinstance(value, list) else 0)


def counted(data: bytes, most: int = 1 << 40) -> int:
    return cbor_items.count(np.frombuffer(data, dtype=np.uint8), most)


@given(values)
def test_items_are_counted_as_they_are_decoded(value: object) -> None:
    """The count is that of the decoded value's parts, and stops one above the limit."""
    there = items(value)
    assert counted(cbor(value)) == there
    assert counted(cbor(value), there) == there
    assert counted(cbor(value), there - 1) == there


@given(st.binary(max_size=60))
def test_any_bytes_can_be_counted(data: bytes) -> None:
    """Whatever the bytes are; what decodes is never taken for malformed."""
    found = counted(data)
    assert cbor_items.MALFORMED <= found <= len(data)
    try:
        decode_cbor(data)
    except FormatError:
        return
    assert found > 0


@pytest.mark.parametrize(
    "data", ["5bffffffffffffffff", "5b8000000000000000", "9fff", "41", "1901", "1c", "7b00000000000000056162"]
)
def test_lengths_past_the_end_are_malformed(data: str) -> None:
    assert counted(bytes.fromhex(data)) == cbor_items.MALFORMED


def test_too_many_items_are_refused_before_any_is_made() -> None:
    data = cbor([0] * 2000)
    assert decode_cbor(data, max_items=2001) == [0] * 2000
    with pytest.raises(FormatError, match="more than 2000 items"):
        decode_cbor(data, max_items=2000)


def test_json_of_too_many_items_is_refused() -> None:
    text = b"[" + b",".join([b"[]"] * 50) + b"]"
    assert len(decode_json(text, max_items=100)) == 50
    with pytest.raises(FormatError, match="more than 99 items"):
        decode_json(text, max_items=99)
    for bad in (b"[", b"\xff", b"[" * 100_000, b'{"a":1,"a":2}'):
        with pytest.raises(FormatError):
            decode_json(bad, unique_keys=True)
