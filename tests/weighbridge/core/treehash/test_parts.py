"""Chunks of bytes are shown at their place, or not at all."""

from __future__ import annotations

import random

import pytest

from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import ProofError
from weighbridge.core.treehash import parts

SIZES = (1, 1024, 1025, 3000, 11 * 1024 + 5)


@pytest.mark.parametrize("size", SIZES)
def test_all_values_name_the_digest(size: int) -> None:
    data = random.Random(size).randbytes(size)
    values = parts.chaining_values(data)
    assert parts.digest_of(values, size) == bytes_digest(data)
    if parts.chunks_of(size) > 1:
        assert parts.chaining_value(data[1024:2048], 1, size) == values[32:64]
    with pytest.raises(ProofError):
        parts.digest_of(values + bytes(32), size)


@pytest.mark.parametrize("size", SIZES)
def test_chunks_come_back_and_no_other_bytes_do(size: int) -> None:
    data, count = random.Random(size).randbytes(size), parts.chunks_of(size)
    digest = bytes_digest(data)
    for wanted in ({0}, {count - 1}, {0, count // 2}, set(range(count))):
        shown = parts.cut(data, wanted)
        found = parts.joined(shown, wanted, size, digest)
        assert found == {at: data[1024 * at : 1024 * (at + 1)] for at in wanted}
        swapped = shown[1024:2048] + shown[:1024] + shown[2048:]
        forged = [shown[:-1], shown + b"\0", bytes([shown[0] ^ 1]) + shown[1:], shown[:-1] + bytes([shown[-1] ^ 1])]
        for other in (*forged, *([swapped] if swapped != shown else [])):
            with pytest.raises(ProofError):
                parts.joined(other, wanted, size, digest)


def test_the_chunks_of_other_places_are_not_those_that_are_asked_for() -> None:
    data = bytes(1024) * 3 + b"x" * 1024  # the first three have the same bytes
    shown = parts.cut(data, {0})
    for wanted in ({1}, {2}, {3}, {0, 1}, {4}, set[int]()):
        with pytest.raises(ProofError):
            parts.joined(shown, wanted, len(data), bytes_digest(data))
    assert parts.joined(b"", set(), len(data), bytes_digest(data)) == {}


@pytest.mark.parametrize("number", [0, 1, 10])
def test_one_of_many_contents_is_known_by_its_chaining_value(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    size, draw = 10 * 1024 + 5, random.Random(number)
    many = [draw.randbytes(5 if number == 10 else 1024) for _ in range(7)]
    values = [parts.chaining_value(each, number, size) for each in many]
    for together in (3, 1 << 12):
        monkeypatch.setattr(parts, "_TOGETHER", together)
        for value in (values[0], values[-1]):
            assert parts.any_has(value, iter(many), number, size)
        assert not parts.any_has(values[-1], many[:-1], number, size)
        assert number == 10 or not parts.any_has(values[0], many, 2, size)
        assert not parts.any_has(bytes(32), [], number, size)
