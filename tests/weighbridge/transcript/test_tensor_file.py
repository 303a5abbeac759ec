import json
import struct

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.core.bounded import Limits
from weighbridge.core.errors import FormatError, TranscriptError, UsageError, WeighbridgeError
from weighbridge.transcript.tensor_file import DTYPES, TensorFile, dtype_name, raw_bytes, write_tensors

names = st.text(max_size=8).filter(lambda name: name != "__metadata__")
shapes = st.lists(st.integers(0, 4), max_size=4)


@st.composite
def tensors(draw):
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(shapes)
    size = torch.Size(shape).numel() * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype == torch.bool:
        data = bytes(byte & 1 for byte in data)
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def same(first, second):
    return (first.dtype, first.shape, bytes(raw_bytes(first))) == (second.dtype, second.shape, bytes(raw_bytes(second)))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("tensors") / "file.safetensors"


@given(
    content=st.dictionaries(names, tensors(), max_size=6), metadata=st.dictionaries(st.text(), st.text(), max_size=3)
)
@settings(max_examples=60)
def test_round_trip(path, content, metadata):
    """Reading a written file gives the same names, dtypes, shapes, bytes and metadata; and safetensors reads it too."""
    write_tensors(path, content, metadata)
    file = TensorFile(path)
    assert set(file) == set(content)
    assert file.metadata == metadata
    for name, tensor in content.items():
        assert same(file.read(name), tensor)
        assert file.shape(name) == (tensor.dtype, tuple(tensor.shape))
    other = safetensors.torch.load(path.read_bytes())
    assert all(same(other[name], tensor) for name, tensor in content.items())
    first = path.read_bytes()
    write_tensors(path, dict(reversed(content.items())), dict(reversed(metadata.items())))
    assert path.read_bytes() == first


def test_files_of_the_reference_writer_are_read(path):
    content = {"b": torch.arange(6).reshape(2, 3), "a": torch.ones(3, dtype=torch.bfloat16), "c": torch.tensor(True)}
    safetensors.torch.save_file(content, path, metadata={"k": "v", "l": "w"})
    file = TensorFile(path, other_writers=True)
    assert file.metadata == {"k": "v", "l": "w"}
    assert all(same(file.read(name), tensor) for name, tensor in content.items())


def test_a_tensor_that_is_a_view_is_written_in_row_order(path):
    view = torch.arange(12.0).reshape(3, 4).t()[1:]
    write_tensors(path, {"x": view.requires_grad_()})
    assert torch.equal(TensorFile(path).read("x"), view)


def test_tensors_that_cannot_be_written(path):
    for tensor in (torch.zeros(2, dtype=torch.complex64), torch.eye(2).to_sparse(), torch.zeros(2, dtype=torch.uint16)):
        with pytest.raises(UsageError):
            write_tensors(path, {"x": tensor})
    for name in ("__metadata__", "\ud800"):
        with pytest.raises(UsageError):
            write_tensors(path, {name: torch.zeros(1)})
    with pytest.raises(UsageError):
        dtype_name(torch.float8_e4m3fn)


def raw(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8 if isinstance(header, dict) else 0)
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="U8", shape=(2,), offsets=(0, 2)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 7,
        struct.pack("<Q", 1 << 63),
        struct.pack("<Q", 100) + b"{}",
        raw(b""),
        raw(b"[]"),
        raw(b"{"),
        raw(b"\xff"),
        raw(b"[" * 50_000),
        raw(b"9" * 5000),
        raw(b'{"a":' + json.dumps(entry()).encode() + b',"a":' + json.dumps(entry()).encode() + b"}", b"ab"),
        raw({}, b"x"),
        raw({"__metadata__": []}),
        raw({"__metadata__": {"a": 1}}),
        raw({"__metadata__": {"a": "\ud800"}}),
        raw({"\ud800": entry()}, b"ab"),
        raw({"a": 1}, b"ab"),
        raw({"a": {**entry(), "more": 1}}, b"ab"),
        raw({"a": entry(dtype="u8")}, b"ab"),
        raw({"a": entry(dtype="U16", shape=[1])}, b"ab"),
        raw({"a": entry(dtype=None)}, b"ab"),
        raw({"a": entry(shape=[3])}, b"ab"),
        raw({"a": entry(shape=[-2])}, b"ab"),
        raw({"a": entry(shape=[2.0])}, b"ab"),
        raw({"a": entry(shape=[True, 2])}, b"ab"),
        raw({"a": entry(shape=[1 << 40, 1 << 40])}, b"ab"),
        raw({"a": entry(shape=[1] * 65 + [2])}, b"ab"),
        raw({"a": entry(shape=[0, 1 << 61, 1 << 61], offsets=[0, 0])}),
        raw({"a": {**entry(), "shape": "2"}}, b"ab"),
        raw({"a": entry(offsets=[0])}, b"ab"),
        raw({"a": entry(offsets=[2, 0])}, b"ab"),
        raw({"a": entry(offsets=[1, 3])}, b"abc"),
        raw({"a": entry(), "b": entry()}, b"ab"),
        raw({"a": entry(), "b": entry(offsets=[1, 3])}, b"abc"),
        raw({"a": entry(), "b": entry(offsets=[3, 5])}, b"abcde"),
        raw({"a": entry()}, b"a"),
        raw({"a": entry()}, b"abc"),
        raw({"a": entry(shape=[1 << 40], offsets=[0, 1 << 40])}, b"ab"),
    ],
)
def test_malformed_files_are_refused(path, data):
    path.write_bytes(data)
    with pytest.raises(FormatError):
        TensorFile(path)


def test_contents_are_checked_when_read(path):
    path.write_bytes(raw({"a": entry(dtype="BOOL")}, b"\x01\x02"))
    with pytest.raises(FormatError):
        TensorFile(path).read("a")
    path.write_bytes(raw({"a": entry()}, b"ab"))
    file = TensorFile(path)
    with pytest.raises(FormatError):
        file.read("b")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError):
        file.read("a")


GOOD = {"b": entry("F32", [1], [0, 4]), "a": entry("U8", [2], [4, 6]), "c": entry("U8", [0], [6, 6])}


@pytest.mark.parametrize(
    "header",
    [
        json.dumps(GOOD).encode(),
        json.dumps(GOOD, separators=(",", ":")).encode() + b" " * 16,
        json.dumps(dict(reversed(GOOD.items())), separators=(",", ":")).encode(),
        {"__metadata__": {}, **GOOD},
        {**GOOD, "__metadata__": {"k": "v"}},
        {"__metadata__": {"l": "w", "k": "v"}, **GOOD},
        {"a": entry("U8", [2], [0, 2]), "c": entry("U8", [0], [2, 2]), "b": entry("F32", [1], [2, 6])},
        {"b": GOOD["b"], "c": entry("U8", [0], [4, 4]), "a": GOOD["a"]},
        {**GOOD, "c": {name: GOOD["c"][name] for name in ("shape", "dtype", "data_offsets")}},
        json.dumps(GOOD, separators=(",", ":")).replace('"a"', '"\\u0061"').encode(),
    ],
)
def test_another_form_of_the_same_tensors_is_refused(path, header):
    path.write_bytes(raw(GOOD, b"abcdef"))
    assert set(TensorFile(path)) == set(GOOD)
    path.write_bytes(raw(header, b"abcdef"))
    TensorFile(path, other_writers=True)
    with pytest.raises(FormatError, match="the one form"):
        TensorFile(path)


@given(
    content=st.dictionaries(names, tensors(), max_size=3), metadata=st.dictionaries(st.text(), st.text(), max_size=2),
    data=st.data(),
)  # fmt: skip
@settings(max_examples=60)
def test_what_is_accepted_is_written_again_as_the_same_bytes(path, content, metadata, data):
    """write_tensors(read(b)) == b for all bytes b that are read: changed ones, and those of another writer."""
    write_tensors(path, content, metadata)
    original = path.read_bytes()
    place = data.draw(st.integers(0, len(original) - 1))
    changed = original[:place] + bytes([data.draw(st.integers(0, 255))]) + original[place + 1 :]
    for candidate in (changed, safetensors.torch.save(content, metadata or None)):
        path.write_bytes(candidate)
        try:
            file = TensorFile(path)
            found = {name: file.read(name) for name in file}
        except FormatError:
            continue
        write_tensors(path, found, file.metadata)
        assert path.read_bytes() == candidate


@given(data=st.binary(max_size=100), tail=st.binary(max_size=8))
def test_hostile_bytes(path, data, tail):
    """Any bytes either parse into tensors that can be read, or raise a WeighbridgeError."""
    for content in (data, raw(data, tail)):
        path.write_bytes(content)
        try:
            file = TensorFile(path)
            for name in file:
                file.read(name)
        except WeighbridgeError:
            pass


def test_limits_hold(path):
    write_tensors(path, {"a": torch.zeros(100), "b": torch.zeros(1)})
    for limits in (Limits(header=10), Limits(tensors=1)):
        with pytest.raises(FormatError):
            TensorFile(path, limits)
    with pytest.raises(TranscriptError) as error:
        TensorFile(path, Limits(file=100))
    assert error.value.reason == "transcript.file.oversized"
    with pytest.raises(TranscriptError):
        TensorFile(path.with_name("missing"))
