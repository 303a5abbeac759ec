import json
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from weighbridge.core.bounded import Limits
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import FormatError, UsageError, WeighbridgeError
from weighbridge.transcript.state import (
    DTYPES,
    Checkpoint,
    View,
    checkpoint_digest,
    read_checkpoint,
    state_digest,
    write_checkpoint,
)
from weighbridge.transcript.tensor_file import write_tensors

names = st.text(min_size=1, max_size=6).filter(lambda name: name != "__metadata__")


@st.composite
def views(draw, name, storage, nbytes):
    dtype = draw(st.sampled_from([name for name, dtype in DTYPES.items() if nbytes % dtype.itemsize == 0]))
    elements = nbytes // DTYPES[dtype].itemsize
    if draw(st.booleans()):
        return View(name, storage, dtype, (elements,), (1,), 0)
    offset = draw(st.integers(0, elements))
    size = draw(st.lists(st.integers(0, 3), max_size=3))
    stride = draw(st.lists(st.integers(0, 4), min_size=len(size), max_size=len(size)))
    view = View(name, storage, dtype, tuple(size), tuple(stride), offset)
    return view if view.end() <= nbytes else View(name, storage, dtype, (0,), (1,), offset)


@st.composite
def checkpoints(draw):
    # Bytes of 0 and 1 are booleans too, so that every dtype can view every storage.
    storages = draw(st.dictionaries(names, st.lists(st.integers(0, 1), max_size=40).map(bytes), max_size=4))
    tensors = {name: torch.tensor(list(data), dtype=torch.uint8) for name, data in storages.items()}
    table = []
    for number, storage in enumerate(draw(st.lists(st.sampled_from(sorted(storages)), max_size=5)) if storages else []):
        table.append(draw(views(f"view {number}", storage, len(storages[storage]))))
    rng = draw(st.dictionaries(names, st.integers(0, 2**64 - 1), max_size=2))
    return Checkpoint(draw(st.integers(0, 99)), tensors, table, rng)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("state") / "checkpoint.safetensors"


def plain(checkpoint):
    return {
        **asdict(replace(checkpoint, storages={})),
        "storages": {k: v.tolist() for k, v in checkpoint.storages.items()},
    }


@given(checkpoint=checkpoints())
@settings(max_examples=80)
def test_round_trip(path, checkpoint):
    """read_checkpoint gives back what write_checkpoint was given, with the same digest."""
    write_checkpoint(path, checkpoint)
    found = read_checkpoint(path)
    assert plain(found) == plain(checkpoint)
    assert checkpoint_digest(found) == checkpoint_digest(checkpoint)
    assert all(data.dtype == torch.uint8 and data.dim() == 1 for data in found.storages.values())


def model():
    weight = torch.arange(6.0).reshape(2, 3)
    flat = torch.arange(8, dtype=torch.int16)
    storages = {"weight": weight.view(torch.uint8).reshape(-1), "flat": flat.view(torch.uint8)}
    table = [
        View("lin.weight", "weight", "f32", (2, 3), (3, 1), 0),
        View("a", "flat", "i16", (4,), (1,), 0),
        View("b", "flat", "i16", (2, 2), (1, 2), 4),
    ]
    return Checkpoint(3, storages, table, {"cpu": 2**64 - 1}), weight, flat


def test_other_tools_see_weights(path):
    checkpoint, weight, _ = model()
    write_checkpoint(path, checkpoint)
    with safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("weight"), weight)
        assert file.get_tensor("flat").dtype == torch.uint8
        assert file.metadata()["step"] == "3"
        assert len(json.loads(file.metadata()["views"])) == 3


def test_views_are_tensors_on_their_storages(path):
    checkpoint, weight, flat = model()
    write_checkpoint(path, checkpoint)
    found = read_checkpoint(path)
    tensors = {view.name: view.tensor(found.storages) for view in found.views}
    assert torch.equal(tensors["lin.weight"], weight)
    assert torch.equal(tensors["a"], flat[:4])
    assert torch.equal(tensors["b"], flat[4:].reshape(2, 2).t())
    tensors["a"][0] = 77
    assert found.storages["flat"][0] == 77


def test_state_digest_depends_on_every_part():
    base = state_digest({"a": (4, bytes(32))}, {"g": 1})
    others = [
        state_digest({"b": (4, bytes(32))}, {"g": 1}),
        state_digest({"a": (5, bytes(32))}, {"g": 1}),
        state_digest({"a": (4, b"\x01" * 32)}, {"g": 1}),
        state_digest({"a": (4, bytes(32)), "b": (4, bytes(32))}, {"g": 1}),
        state_digest({"a": (4, bytes(32))}, {"g": 2}),
        state_digest({"a": (4, bytes(32))}, {"h": 1}),
        state_digest({"a": (4, bytes(32))}, {}),
    ]
    assert len({base, *others}) == 8
    both = {"a": (4, bytes(32)), "b": (1, bytes(32))}
    assert state_digest(both, {}) == state_digest(dict(reversed(both.items())), {})
    checkpoint, _, _ = model()
    regions = {name: (data.numel(), bytes_digest(data.numpy().tobytes())) for name, data in checkpoint.storages.items()}
    assert checkpoint_digest(checkpoint) == state_digest(regions, checkpoint.rng)


GOOD = View("v", "s", "f32", (2,), (1,), 0)


@pytest.mark.parametrize(
    "view",
    [
        replace(GOOD, storage="other"),
        replace(GOOD, dtype="f128"),
        replace(GOOD, size=(3,)),
        replace(GOOD, size=(2, 1)),
        replace(GOOD, stride=(2,)),
        replace(GOOD, stride=(-1,)),
        replace(GOOD, offset=1),
        replace(GOOD, offset=-1),
        replace(GOOD, size=(0,), offset=9),
        replace(GOOD, size=(True, 2), stride=(1, 1)),
        replace(GOOD, size=(1 << 62,), stride=(0,)),
        replace(GOOD, size=(1,) * 65, stride=(1,) * 65),
    ],
)
def test_views_must_lie_within_their_storage(path, view):
    storages = {"s": torch.zeros(8, dtype=torch.uint8)}
    write_checkpoint(path, Checkpoint(0, storages, [GOOD], {}))
    with pytest.raises(UsageError):
        write_checkpoint(path, Checkpoint(0, storages, [view], {}))
    forge(path, views=[asdict(GOOD) | asdict(view)])
    with pytest.raises(FormatError):
        read_checkpoint(path)


def test_checkpoints_that_cannot_be_written(path):
    storages = {"s": torch.zeros(8, dtype=torch.uint8)}
    for bad in (
        Checkpoint(-1, storages, [], {}),
        Checkpoint(0, storages, [GOOD, GOOD], {}),
        Checkpoint(0, storages, [], {"g": -1}),
        Checkpoint(0, storages, [], {"g": 2**64}),
        Checkpoint(0, {"s": torch.zeros(2)}, [], {}),
        Checkpoint(0, {"s": torch.zeros(2, 4, dtype=torch.uint8)}, [], {}),
    ):
        with pytest.raises(UsageError):
            write_checkpoint(path, bad)


def forge(path, **changes):
    """Writes a checkpoint of one 8-byte storage `s` with the metadata of a liar."""
    tensor = changes.pop("tensor", torch.zeros(2))
    metadata = {"format": "weighbridge-checkpoint/1", "step": 0, "views": [asdict(GOOD)], "rng": {}, **changes}
    text = {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
        for name, value in metadata.items()
        if value is not None
    }
    write_tensors(path, {"s": tensor}, text)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "weighbridge-checkpoint/2"},
        {"format": None},
        {"extra": "x"},
        {"step": "-1"},
        {"step": " 0"},
        {"step": "0.0"},
        {"step": "NaN"},
        {"step": "9" * 5000},
        {"step": "["},
        {"rng": []},
        {"rng": 7},
        {"rng": {"g": -1}},
        {"rng": {"g": 1.0}},
        {"rng": '{"b":1,"a":1}'},
        {"rng": "[" * 50_000},
        {"views": {}},
        {"views": 1},
        {"views": [1]},
        {"views": [{}]},
        {"views": [{**asdict(GOOD), "more": 1}]},
        {"views": [{**asdict(GOOD), "name": 1}]},
        {"views": [{**asdict(GOOD), "name": ["v"]}]},
        {"views": [{**asdict(GOOD), "storage": ["s"]}]},
        {"views": [{**asdict(GOOD), "dtype": {}}]},
        {"views": [{**asdict(GOOD), "size": 2}]},
        {"views": [{**asdict(GOOD), "stride": None}]},
        {"views": [{**asdict(GOOD), "offset": None}]},
        {"views": [asdict(GOOD), asdict(GOOD)]},
        {"views": []},
        {"tensor": torch.zeros(8, dtype=torch.uint8)},
        {"tensor": torch.zeros(1, 2)},
        {"tensor": torch.zeros(4)},
    ],
    ids=str,
)
def test_forged_metadata_is_refused(path, changes):
    forge(path)
    assert read_checkpoint(path).views == [GOOD]
    forge(path, **changes)
    with pytest.raises(FormatError):
        read_checkpoint(path)


@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
def test_damaged_bytes(path, place, value):
    """A damaged checkpoint is refused with a WeighbridgeError or reads as one that can be written."""
    checkpoint, _, _ = model()
    write_checkpoint(path, checkpoint)
    data = bytearray(path.read_bytes())
    data[place % len(data)] = value
    path.write_bytes(data)
    try:
        found = read_checkpoint(path, Limits(file=1 << 20))
    except WeighbridgeError:
        return
    write_checkpoint(path, found)
    assert plain(read_checkpoint(path)) == plain(found)
