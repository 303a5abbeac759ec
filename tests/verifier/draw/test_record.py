"""Records of draws as files: they come back as they were, and hostile ones raise only our errors."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.draws import House, fleet, heads_of

from verifier.draw.record import DrawRecord, parse_record, read_log, read_record, write_files
from verifier.model.strata import DrawFormatError
from weighbridge.core.errors import UsageError, WeighbridgeError

SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[DrawRecord]:
    house = House(tmp_path)
    population = fleet(20)
    yield house.record(population, heads_of(population, {2}))
    house.close()


def content(record: DrawRecord) -> bytes:
    return record.files()[0][1]


def test_a_record_comes_back_as_it_was(record: DrawRecord) -> None:
    """Round trip: parse_record(record.files()[0]) == record, and writing it again gives the same bytes."""
    assert parse_record(content(record)) == record
    assert parse_record(content(record)).files() == record.files()


@given(data=st.data())
@SHARED
def test_hostile_records_raise_only_our_errors(record: DrawRecord, data: st.DataObject) -> None:
    value: Any = json.loads(content(record))
    path = data.draw(st.sampled_from(sorted(value)))
    junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.just("\ud800"),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner, max_size=2),
    )
    if isinstance(value[path], dict) and data.draw(st.booleans()):
        value[path][data.draw(st.sampled_from(sorted(value[path])))] = data.draw(junk)
    else:
        value[path] = data.draw(junk)
    with contextlib.suppress(WeighbridgeError):
        parse_record(json.dumps(value).encode())


@given(st.binary(max_size=100), st.integers(0, 20_000))
@SHARED
def test_hostile_bytes_raise_only_our_errors(record: DrawRecord, junk: bytes, place: int) -> None:
    good = content(record)
    for hostile in (junk, good[:place], good[:place] + junk + good[place + len(junk) :]):
        try:
            parse_record(hostile)
        except WeighbridgeError:
            continue


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "weighbridge-draw/2"}, {"extra": 1}, {"log": "nobody"}, {"witnesses": "nobody"},
        {"population": {"file": "/etc/passwd"}}, {"population": {"file": "population.tsv"}}, {"heads": {}},
        {"drawn": ["0G"]}, {"drawn": ["00" * 40]}, {"certain": {}}, {"commitment": None}, {"closing": []},
    ],
)  # fmt: skip
def test_wrong_records_are_refused(record: DrawRecord, change: dict[str, Any]) -> None:
    value = {**json.loads(content(record)), **change}
    with pytest.raises(DrawFormatError):
        parse_record(json.dumps(value).encode())


def test_a_record_with_a_key_twice_is_refused(record: DrawRecord) -> None:
    with pytest.raises(DrawFormatError):
        parse_record(b'{"drawn": [],' + content(record)[1:])


def test_entries_of_the_wrong_kind_are_refused(record: DrawRecord) -> None:
    value = json.loads(content(record))
    for one, other in (("commitment", "closing"), ("closing", "opening"), ("opening", "commitment")):
        with pytest.raises(DrawFormatError):
            parse_record(json.dumps({**value, one: value[other]}).encode())


def test_files_that_are_not_there_are_named(record: DrawRecord, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing"):
        read_record(tmp_path / "missing")
    with pytest.raises(UsageError, match="checkpoint"):
        read_log(tmp_path / "missing")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be written"):
        write_files(tmp_path / "file", record.files())


def test_what_lies_beside_a_record_is_a_regular_file(record: DrawRecord, tmp_path: Path) -> None:
    """Who sends a draw would make its reader wait for ever with a pipe, or fill its memory with a link to a device."""
    draw = tmp_path / "draw"
    write_files(draw, record.files())
    value = json.loads(content(record))
    value["population"] = {"file": "population.tsv"}
    (draw / "draw.json").write_text(json.dumps(value))
    for make in (os.mkfifo, lambda place: place.symlink_to("/dev/zero")):
        make(draw / "population.tsv")
        with pytest.raises(UsageError, match=r"regular files|cannot be opened"):
            read_record(draw / "draw.json")
        (draw / "population.tsv").unlink()
