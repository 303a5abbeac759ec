"""A list of sealed files has one encoding, and its commitment tells nothing of it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.attest.sealed_list import SealedFile, SealedList, commitment, list_files
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, UsageError

BLIND = bytes(range(32))
_FILES = st.builds(
    SealedFile,
    name=st.lists(st.sampled_from(["a", "b-1", "Z_", "x.cbor", "0" * 60]), min_size=1, max_size=4).map("/".join),
    size=st.integers(0, 1 << 44),
    digest=st.binary(min_size=32, max_size=32),
)


def _of(blind: bytes, files: list[SealedFile]) -> SealedList:
    """A list without the files whose names would be directories of others'."""
    above = {str(parent) for each in files for parent in Path(each.name).parents}
    return SealedList(blind, tuple(sorted((f for f in files if f.name not in above), key=lambda each: each.name)))


LISTS = st.builds(
    _of, st.binary(min_size=32, max_size=32), st.lists(_FILES, min_size=1, max_size=4, unique_by=lambda f: f.name)
)


@given(files=LISTS)
def test_a_list_comes_back(files: SealedList) -> None:
    """Law: from_cbor(l.to_cbor()) == l."""
    assert SealedList.from_cbor(files.to_cbor()) == files


@given(files=LISTS, at=st.integers(0), value=st.integers(0, 255), cut=st.integers(0))
def test_bytes_are_one_list_or_refused(files: SealedList, at: int, value: int, cut: int) -> None:
    """Law: from_cbor(data).to_cbor() == data, or data is refused."""
    data = bytearray(files.to_cbor())
    data[at % len(data)] = value
    for each in (bytes(data), bytes(data[: cut % len(data)]), bytes(data) + b"\x00"):
        with suppress(FormatError):
            assert SealedList.from_cbor(each).to_cbor() == each


def _file(name: Any = "a", size: Any = 1, digest: Any = bytes(32)) -> list[Any]:
    return [name, size, digest]


@pytest.mark.parametrize(
    "value",
    [
        [BLIND, []],
        [BLIND[:16], [_file()]],
        [BLIND, [_file(), _file()]],
        [BLIND, [_file("b"), _file("a")]],
        [BLIND, [_file("a"), _file("a/b")]],
        [BLIND, [_file("a"), _file("a-b"), _file("a/b")]],
        *([BLIND, [_file(name)]] for name in ("", "/a", "../a", "a/../b", "a//b", ".a", "a\n", "a/", "ä", "a" * 256)),
        *([BLIND, [_file(size=size)]] for size in (-1, (1 << 44) + 1, True, 1.0)),
        [BLIND, [_file(digest=bytes(31))]],
        [BLIND, [["a", 1]]],
        [BLIND, {}],
        {},
        [BLIND, [_file()], 1],
    ],
    ids=repr,
)
def test_what_is_no_list_is_refused(value: Any) -> None:
    with pytest.raises(FormatError):
        SealedList.from_cbor(cbor(value))


def test_a_list_that_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(FormatError, match="too large"):
        SealedList.from_cbor(bytes((1 << 20) + 1))


def test_two_lists_of_the_same_files_have_other_commitments(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    one, two = (list_files(tmp_path, ["a"]) for _ in range(2))
    assert one.files == two.files
    assert commitment(one.to_cbor()) != commitment(two.to_cbor())
    guess = SealedList(bytes(32), one.files)
    assert commitment(guess.to_cbor()) != commitment(one.to_cbor())


def test_a_file_that_is_not_there_is_not_listed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        list_files(tmp_path, ["a"])


def test_a_list_of_empty_files_cannot_fill_a_disk_with_directories() -> None:
    """Each of seven directories to one file of nothing: a million bytes of a list made half a gigabyte of blocks."""
    files = tuple(SealedFile(f"{number:05}/b/c/d/e/f/g/h", 0, bytes(32)) for number in range(2_000))
    with pytest.raises(FormatError, match="directories"):
        SealedList(BLIND, files)
