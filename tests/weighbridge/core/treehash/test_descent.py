"""Layers lead from a digest to one chunk, keyed and plain, and values of another tree do not."""

from __future__ import annotations

import random

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core.errors import ProofError
from weighbridge.core.treehash import descent

KEY = bytes(range(32))
KEYS = (None, KEY)
MIB = 1 << 20


def digest(data: bytes, key: bytes | None) -> bytes:
    return blake3(data).digest() if key is None else blake3(data, key=key).digest()


def descend(data: bytes, key: bytes | None, choose: random.Random) -> tuple[tuple[int, ...], bytes]:
    """Goes down, checking each layer; returns path and value of a chunk."""
    path: tuple[int, ...] = ()
    above = digest(data, key)
    while len(path) < descent.height(len(data)):
        values = descent.layer(data, path, key)
        descent.require_layer(values, len(data), path, above, key)
        with pytest.raises(ProofError):
            descent.require_layer(bytes([values[0] ^ 1]) + values[1:], len(data), path, above, key)
        with pytest.raises(ProofError):
            descent.require_layer(values + bytes(32), len(data), path, above, key)
        if len(values) > 32:  # a single value is the one above it
            with pytest.raises(ProofError):
                descent.require_layer(values, len(data), path, above, bytes(32) if key is None else None)
        place = choose.randrange(len(values) // 32)
        above, path = values[32 * place : 32 * place + 32], (*path, place)
    return path, above


@given(size=st.integers(0, 12 * 1024), seed=st.integers(0, 999), key=st.sampled_from(KEYS))
def test_layers_lead_from_the_digest_to_any_chunk(size: int, seed: int, key: bytes | None) -> None:
    """Law: the value at the end of a path is the one of the chunk there, and layers give the value above them."""
    choose = random.Random(seed)
    data = choose.randbytes(size)
    path, value = descend(data, key, choose)
    at = 1024 * descent.chunk_number(size, path)
    chunk = data[at : at + 1024]
    assert descent.value_of_chunk(chunk, size, path, key) == value
    if chunk:
        other = bytes([chunk[0] ^ 1]) + chunk[1:]
        assert descent.value_of_chunk(other, size, path, key) != value
        with pytest.raises(ProofError, match="show the whole chunk"):
            descent.value_of_chunk(chunk[:-1], size, path, key)


@pytest.mark.parametrize("size", [MIB, MIB + 1, 3 * MIB + 77])
@pytest.mark.parametrize("key", KEYS)
def test_large_bytes_have_two_layers(size: int, key: bytes | None) -> None:
    assert descent.height(size) == (1 if size == MIB else 2)
    choose = random.Random(size)
    data = choose.randbytes(size)
    for _ in range(3):
        path, value = descend(data, key, choose)
        at = 1024 * descent.chunk_number(size, path)
        assert descent.value_of_chunk(data[at : at + 1024], size, path, key) == value


def test_heights_and_widths() -> None:
    assert [descent.height(size) for size in (0, 1, MIB, MIB + 1, MIB << 10, (MIB << 10) + 1)] == [1, 1, 1, 2, 2, 3]
    assert descent.width(MIB + 1, ()) == 2
    assert descent.width(MIB + 1, (0,)) == 1024
    assert descent.width(MIB + 1, (1,)) == 1
    assert descent.width((MIB << 10) + 1, (1, 0)) == 1
    assert descent.chunk_number((MIB << 10) + 1, (1, 0, 0)) == MIB


@pytest.mark.parametrize("path", [(2,), (-1,), (0, 1024), (1, 1), (0, 0, 0), ()])
def test_a_path_to_nowhere_is_refused(path: tuple[int, ...]) -> None:
    with pytest.raises(ProofError):
        descent.chunk_number(MIB + 1, path)
