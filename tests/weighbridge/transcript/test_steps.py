import struct
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core.bounded import Limits, compress
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, WeighbridgeError
from weighbridge.transcript.steps import (
    StepRecord,
    open_batches,
    pack_logs,
    pack_records,
    read_batch,
    read_logs,
    read_records,
)
from weighbridge.transcript.tensor_file import write_tensors

naturals = st.integers(0, 2**64 - 1)
digests = st.binary(min_size=32, max_size=32)
scalars = st.integers(-(2**63), 2**64 - 1) | st.floats() | st.booleans()


@st.composite
def records(draw):
    step = draw(st.integers(0, 99_999_999))
    hashes = draw(st.lists(digests, max_size=3))
    return StepRecord(
        step=step,
        kind=draw(st.sampled_from(["step", "edit"])) if step else "init",
        tape=draw(digests),
        values=draw(st.lists(scalars)),
        host=draw(st.lists(scalars)),
        rng=draw(st.dictionaries(st.text(), st.tuples(naturals, naturals), max_size=3)),
        state=draw(digests),
        checksums=draw(st.lists(naturals, max_size=4).map(lambda sums: struct.pack(f"<{len(sums)}Q", *sums))),
        rounding=draw(digests),
        batch=draw(digests),
        records=draw(st.sampled_from([[], list(range(len(hashes)))])),
        record_digests=hashes,
        free=sorted(draw(st.sets(st.text(), max_size=3))),
        snapshots=draw(st.lists(st.tuples(st.binary(min_size=17, max_size=33), naturals, naturals), max_size=2)),
        rounded=draw(naturals),
        logged=draw(naturals),
        formulas=[] if step else draw(st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), max_size=2)),
        counts=draw(st.lists(naturals, max_size=8)),
    )


def bits(values):
    """Values with their types, and floats by their bits: 1, 1.0 and True, 0.0 and -0.0 are all different."""
    return [(type(value), struct.pack("<d", value) if isinstance(value, float) else value) for value in values]


def alike(first, second):
    # NaN differs from itself; a record carries the one canonical NaN.
    rest = {"values": [], "host": []}
    return replace(first, **rest) == replace(second, **rest) and all(
        bits(canonical(getattr(first, name))) == bits(canonical(getattr(second, name))) for name in rest
    )


def canonical(values):
    return [float("nan") if value != value else value for value in values]


@given(records())
def test_round_trip(record):
    """from_cbor(to_cbor(r)) is r, bit for bit but for the payload of a NaN."""
    found = StepRecord.from_cbor(record.to_cbor())
    assert alike(found, record)
    assert found.to_cbor() == record.to_cbor()
    assert found.digest() == record.digest()


GOOD = StepRecord(
    step=3, kind="step", tape=bytes(32), values=[], host=[], rng={}, state=bytes(32), checksums=b"", rounding=bytes(32),
    batch=bytes(32), records=[], record_digests=[], free=[], snapshots=[], rounded=0, logged=0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", -1),
        ("step", True),
        ("step", 3.0),
        ("step", 0),
        ("step", 10**8),
        ("kind", "init"),
        ("kind", "other"),
        ("kind", ["step"]),
        ("tape", bytes(31)),
        ("tape", "0" * 32),
        ("values", [None]),
        ("values", ["1"]),
        ("values", [[1]]),
        ("values", 1),
        ("host", {}),
        ("rng", {"g": [1]}),
        ("rng", {"g": [1, 2, 3]}),
        ("rng", {"g": [1, -1]}),
        ("rng", {"g": [1, 1.0]}),
        ("rng", []),
        ("checksums", bytes(9)),
        ("records", [0]),
        ("records", [-1]),
        ("records", [1.0]),
        ("record_digests", [bytes(31)]),
        ("free", ["b", "a"]),
        ("free", ["a", "a"]),
        ("free", [1, 2]),
        ("free", [1, "a"]),
        ("snapshots", [[b"x", 1]]),
        ("snapshots", [["x", 1, 1]]),
        ("snapshots", [[b"", 1, 1]]),
        ("snapshots", [[bytes(65), 1, 1]]),
        ("snapshots", [[b"x", 1, None]]),
        ("rounded", -1),
        ("logged", None),
        ("more", 1),
    ],
)
def test_every_field_is_checked(field, value):
    assert StepRecord.from_cbor(cbor(GOOD.to_map())) == GOOD
    with pytest.raises(FormatError):
        StepRecord.from_cbor(cbor({**GOOD.to_map(), field: value}))


def test_no_field_may_be_missing():
    for name in GOOD.to_map():
        with pytest.raises(FormatError):
            StepRecord.from_map({key: value for key, value in GOOD.to_map().items() if key != name})
    for value in (None, [], 3, "x"):
        with pytest.raises(FormatError):
            StepRecord.from_map(value)


@given(records(), st.integers(0, 10**6), st.integers(0, 255))
def test_damaged_records(record, place, value):
    """A damaged record is refused with a WeighbridgeError, or is the encoding of another record."""
    data = bytearray(record.to_cbor())
    data[place % len(data)] = value
    try:
        found = StepRecord.from_cbor(bytes(data))
    except WeighbridgeError:
        return
    assert found.to_cbor() == data


def test_segment_files(tmp_path):
    path, limits = tmp_path / "file", Limits()
    segment = [replace(GOOD, step=step) for step in (3, 4, 5)]
    path.write_bytes(pack_records(segment))
    assert read_records(path, limits) == segment
    with pytest.raises(WeighbridgeError):
        read_records(path, Limits(steps=2))
    logs = [b"", b"a", b"\xff" * 1000]
    path.write_bytes(pack_logs(logs))
    assert read_logs(path, limits) == logs
    with pytest.raises(WeighbridgeError):
        read_logs(path, Limits(rounding=999))
    path.write_bytes(compress(cbor(1)))
    for read in (read_records, read_logs):
        with pytest.raises(FormatError):
            read(path, limits)


def test_batch_files(tmp_path):
    path, limits = tmp_path / "file", Limits()
    one, two = torch.ones(2), torch.zeros(3)
    write_tensors(path, {"3/batch/a": one, "3/batch/a/b": two, "3/free/a": two, "13/batch/a": two, "4/batch/": one})
    file = open_batches(path, range(3, 14), limits)
    batch, free = read_batch(file, 3)
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {"a": [1, 1], "a/b": [0, 0, 0]}
    assert list(free) == ["a"]
    assert list(read_batch(file, 4)[0]) == [""]
    assert read_batch(file, 5) == ({}, {})
    for name in ("2/batch/a", "14/batch/a", "03/batch/a", "3/other/a", "3/batch", "a", "-3/batch/a", "٣/batch/a"):
        write_tensors(path, {name: one})
        with pytest.raises(FormatError):
            open_batches(path, range(3, 14), limits)


def test_reading_all_batches_takes_time_in_proportion(tmp_path):
    """A Prover chooses how many steps and tensors a segment has: their product may cost a Verifier nothing."""
    count = 12_000
    path = tmp_path / "batches.safetensors"
    write_tensors(path, {f"{step}/batch/x": torch.tensor([step]) for step in range(count)})
    file = open_batches(path, range(count), Limits())
    started = time.process_time()
    assert [read_batch(file, step)[0]["x"].item() for step in range(count)] == list(range(count))
    assert time.process_time() - started < 8  # under 1 s; looking through all names for each step takes half a minute
