"""Tapes as bytes: one encoding each, and nothing malformed gets past decoding."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import cbor2
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import TapeError, WeighbridgeError
from weighbridge.transcript.tape import DTYPES, Input, Node, Tape, extent, references

names = st.text(max_size=8)
sizes = st.integers(0, 1 << 40)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(1 << 62), 1 << 62), names)


@st.composite
def tapes(draw: st.DrawFn) -> Tape:
    """A tape that keeps every rule of the format, whatever its operations would do."""
    tape = Tape(values=draw(st.integers(0, 5)), hosts=draw(st.integers(0, 5)))
    alive: dict[int, int] = {}
    for slot in range(draw(st.integers(0, 3))):
        alive[slot] = draw(sizes)
        tape.inputs.append(Input(slot, alive[slot], draw(st.sampled_from(["state", "batch", "free"])), draw(names)))

    def reference() -> int:
        slot = draw(st.sampled_from(sorted(alive)))
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        room = alive[slot] // DTYPES[dtype].itemsize
        length = draw(st.integers(0, min(room, 5)))
        stride = draw(st.integers(0, max(0, (room - 1) // length - 1))) if length else draw(st.integers(0, 9))
        offset = draw(st.integers(0, room - 1 - (length - 1) * stride)) if length else 0
        ref = (slot, dtype, (length,), (stride,), offset)
        if ref not in tape.refs:
            tape.refs.append(ref)
        return tape.refs.index(ref)

    def operand() -> Any:
        if len(alive) > 0 and draw(st.booleans()):
            return ("t", reference())
        return draw(st.one_of(scalars, st.tuples(st.just("l"), st.tuples(scalars, scalars))))

    if len(alive) > 0 and draw(st.booleans()):
        tape.batch_views.append((draw(names), tape.refs[reference()]))
    for index in range(draw(st.integers(0, 5))):
        args = tuple(operand() for _ in range(draw(st.integers(0, 3))))
        kwargs: dict[str, Any] = {draw(names): operand() for _ in range(draw(st.integers(0, 2)))}
        births: tuple[tuple[int, int], ...] = ()
        if draw(st.booleans()):
            slot = (
                max([s for node in tape.nodes for s, _ in node.births] + [i.slot for i in tape.inputs], default=-1) + 1
            )
            births = ((slot, draw(sizes)),)
            alive[slot] = births[0][1]
        outputs = tuple(
            reference() if len(alive) > 0 and draw(st.booleans()) else None for _ in range(draw(st.integers(0, 2)))
        )
        key = draw(st.none() | st.tuples(st.integers(0, 9), st.integers(-9, 9)))
        path = draw(st.none() | st.integers(0, len(tape.paths)))
        if path == len(tape.paths):
            tape.paths.append(draw(names.filter(lambda name: name not in tape.paths)))
        tape.nodes.append(Node(draw(names), args, kwargs, outputs, births, key, path))
        if len(alive) > 0 and draw(st.booleans()):
            slot = draw(st.sampled_from(sorted(alive)))
            del alive[slot]
            tape.frees.append((index + 1, slot))
    tape.survivors = [(slot, draw(names)) for slot in sorted(alive)]
    return tape


@given(tapes())
def test_decoding_inverts_encoding(tape: Tape) -> None:
    """Tape.decode(t.encode()) == t, and its digest is that of its bytes."""
    data = tape.encode()
    assert Tape.decode(data) == tape
    assert tape.digest == bytes_digest(data)


@given(st.binary(max_size=200))
def test_hostile_bytes_raise_only_our_errors(data: bytes) -> None:
    with pytest.raises(TapeError):
        Tape.decode(data)


@given(tapes(), st.data())
def test_a_changed_byte_gives_another_tape_or_our_error(tape: Tape, data: st.DataObject) -> None:
    raw = bytearray(tape.encode())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        decoded = Tape.decode(bytes(raw))
    except WeighbridgeError:
        return
    assert decoded != tape
    assert decoded.encode() == bytes(raw)


junk = st.recursive(
    st.one_of(scalars, st.floats(), st.binary(max_size=4), st.integers(1 << 62, 1 << 80)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


@given(
    tapes(),
    st.sampled_from(["v", "inputs", "refs", "nodes", "frees", "survivors", "batch", "values", "hosts", "paths"]),
    junk,
)
def test_a_field_of_another_form_raises_only_our_errors(tape: Tape, field: str, value: Any) -> None:
    raw = cbor2.loads(tape.encode())
    assume(value != raw[field])
    raw[field] = value
    try:
        decoded = Tape.decode(cbor(raw))
    except WeighbridgeError:
        return
    assert decoded != tape


@given(tapes(), st.integers(0, 6), junk)
def test_a_node_of_another_form_raises_only_our_errors(tape: Tape, place: int, value: Any) -> None:
    assume(tape.nodes)
    raw = cbor2.loads(tape.encode())
    raw["nodes"][0][place] = value
    try:
        decoded = Tape.decode(cbor(raw))
    except WeighbridgeError:
        return
    assert decoded.encode() == cbor(raw)


# --- one rule after another -----------------------------------------------------------------------------------------

REF = (0, "f32", (2, 3), (3, 1), 1)
"""Six float32 from the second on: bytes 4 to 28."""


def small() -> Tape:
    """x (state, 28 bytes) -> a view -> y = view + view (born, 24 bytes, survives); x is freed."""
    return Tape(
        inputs=[Input(0, 28, "state", "model.weight")],
        refs=[REF, (1, "f32", (2, 3), (3, 1), 0)],
        nodes=[
            Node("alias.default", (("t", 0),), {}, (0,)),
            Node("add.Tensor", (("t", 0), ("t", 0)), {}, (1,), births=((1, 24),), path=0),
        ],
        frees=[(2, 0)],
        survivors=[(1, "model.other")],
        paths=["model.layer"],
    )


def altered(**changes: Any) -> Tape:
    return dataclasses.replace(small(), **changes)


def test_the_small_tape_is_sound() -> None:
    assert Tape.decode(small().encode()) == small()
    assert extent(REF) == 28
    assert small().largest_footprint() == 52
    assert [small().path_of(op) for op in (-1, 0, 1, 2)] == [None, None, "model.layer", None]


NODES = small().nodes
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "reference past the end": ({"inputs": [Input(0, 27, "state", "w")]}, "tape.out_of_bounds"),
    "output past the end": (
        {"nodes": [NODES[0], NODES[1]._replace(births=((1, 23),))]}, "tape.out_of_bounds",
    ),
    "batch view past the end": ({"batch_views": [("x", (0, "f32", (8,), (1,), 0))]}, "tape.out_of_bounds"),
    "batch view of nothing": ({"batch_views": [("x", (5, "f32", (1,), (1,), 0))]}, "tape.out_of_bounds"),
    "reference that does not exist": ({"refs": [REF]}, "tape.malformed"),
    "slot that does not exist": ({"inputs": []}, "tape.malformed"),
    "slot enters twice": ({"inputs": [Input(0, 28, "state", "w"), Input(0, 28, "state", "v")]}, "tape.malformed"),
    "born although it entered": (
        {"nodes": [NODES[0], NODES[1]._replace(births=((0, 28), (1, 24)))]}, "tape.malformed",
    ),
    "born twice": ({"nodes": [NODES[0], NODES[1]._replace(births=((1, 24), (1, 24)))]}, "tape.malformed"),
    "used after its free": ({"frees": [(1, 0)]}, "tape.malformed"),
    "freed twice": ({"frees": [(2, 0), (2, 0)]}, "tape.malformed"),
    "freed before its birth": ({"frees": [(0, 1)]}, "tape.malformed"),
    "freed after the end": ({"frees": [(3, 0)]}, "tape.malformed"),
    "survives its free": ({"survivors": [(0, "w")]}, "tape.malformed"),
    "unknown origin": ({"inputs": [Input(0, 28, "moon", "w")]}, "tape.malformed"),
    "unknown dtype": ({"refs": [(0, "f31", (2, 3), (3, 1), 1), small().refs[1]]}, "tape.malformed"),
    "strides without sizes": ({"refs": [(0, "f32", (2, 3), (3,), 1), small().refs[1]]}, "tape.malformed"),
    "negative stride": ({"refs": [(0, "f32", (2, 3), (-3, 1), 4), small().refs[1]]}, "tape.malformed"),
    "negative size": ({"refs": [(0, "f32", (-2, 3), (3, 1), 1), small().refs[1]]}, "tape.malformed"),
    "extent that wraps 64 bits": (
        {"refs": [(0, "f32", (1 << 61, 3), (1 << 61, 1), 0), small().refs[1]]}, "tape.out_of_bounds",
    ),
    "float operand": ({"nodes": [Node("mul.Scalar", (("t", 0), 0.5), {}, (0,))]}, "tape.malformed"),
    "path that does not exist": ({"paths": []}, "tape.malformed"),
    "path that no operation names": ({"paths": ["model.layer", "model"]}, "tape.malformed"),
    "path twice in the table": (
        {"nodes": [n._replace(path=i) for i, n in enumerate(NODES)], "paths": ["m", "m"]}, "tape.malformed",
    ),
    "paths out of order": (
        {"nodes": [n._replace(path=1 - i) for i, n in enumerate(NODES)], "paths": ["a", "b"]},
        "tape.malformed",
    ),
    "negative count": ({"values": -1}, "tape.malformed"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_a_tape_error(fault: str) -> None:
    changes, code = FAULTS[fault]
    with pytest.raises(TapeError) as caught:
        Tape.decode(altered(**changes).encode())
    assert caught.value.reason == code


def test_deep_nesting_is_refused() -> None:
    value: Any = 1
    for _ in range(500):
        value = ("l", (value,))
    with pytest.raises(TapeError):
        Tape.decode(altered(nodes=[Node("add.Tensor", (value,), {}, ())], frees=[], survivors=[]).encode())


def test_another_encoding_of_the_same_tape_is_refused() -> None:
    raw = cbor2.loads(small().encode())
    for data in (
        cbor2.dumps(dict(reversed(raw.items()))),  # keys in another order
        small().encode() + b"\x00",
        cbor({**raw, "more": 1}),
    ):
        with pytest.raises(TapeError):
            Tape.decode(data)


def test_shared_references_do_not_grow() -> None:
    """CBOR tags 28 and 29 name a value once and repeat it: a few bytes that would be terabytes when written out."""
    row = b"\xd8\x1c\x8a" + b"\x01" * 10
    for _ in range(12):
        row = b"\xd8\x1c\x8a" + row + b"\xd8\x1d\x00" * 9
    with pytest.raises(TapeError):
        Tape.decode(row)


def test_references_are_found_at_any_depth() -> None:
    assert references((("t", 4), ("l", (("t", 1), ("l", (("t", 2),)), ("v", 9))), ("s", "t"))) == [4, 1, 2]


@given(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(1, 4), max_size=4), st.integers(0, 5))
def test_the_extent_is_what_pytorch_needs(dtype: str, size: list[int], offset: int) -> None:
    """A storage of `extent` bytes holds the tensor to its last byte."""
    elements = torch.empty(offset + math.prod(size), dtype=DTYPES[dtype])
    view = elements[offset:].view(size)
    ref = (0, dtype, tuple(size), view.stride(), offset)
    assert extent(ref) == elements.untyped_storage().nbytes()


def test_the_footprint_counts_what_lives_at_the_same_time() -> None:
    tape = Tape(
        inputs=[Input(0, 100, "state", "w")],
        nodes=[
            Node("a.b", (), {}, (), ((1, 10),)),
            Node("a.b", (), {}, (), ((2, 20),)),
            Node("a.b", (), {}, (), ((3, 5),)),
        ],
        frees=[(1, 1), (2, 0), (2, 2)],
    )
    assert tape.largest_footprint() == 120


def test_the_example_of_the_format_page_decodes() -> None:
    page = (Path(__file__).parents[3] / "docs/formats/tape.md").read_text()
    dump = page.split("```")[1]
    data = bytes.fromhex("".join(dump.split()))
    tape = Tape.decode(data)
    assert tape.encode() == data
    assert tape.digest.hex() in page
    assert [node.op for node in tape.nodes] == ["mul.Tensor", "mul_.Tensor"]
