"""Each content of a transcript has one accepted encoding: whatever a decoder takes, it writes again as the same bytes.

The decoders of rounding logs and tensor files, which are not CBOR, have the same test beside their others.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fuzz.seeds import example_tape
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution import collective_openings
from weighbridge.execution.collective_openings import Opening, Piece, Target
from weighbridge.transcript import (
    chip_notes,
    entry_notes,
    layout,
    record_opening,
    resumption_notes,
    returned_state,
    training_claims,
)
from weighbridge.transcript.chip_notes import ChipNotes
from weighbridge.transcript.data import DataCommitment, OrderSeed, VerifiableOrder
from weighbridge.transcript.entry_notes import EntryNote
from weighbridge.transcript.job_record import JobRecord
from weighbridge.transcript.layout import Shard
from weighbridge.transcript.resumption_notes import Resumption
from weighbridge.transcript.returned_state import Held, Returned
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.training_claims import Claims

Again = Callable[[bytes], bytes]
"""Decodes bytes and encodes what came of it."""


def _record(data: bytes) -> bytes:
    parts = record_opening._decode(data)
    return record_opening.encode({name: record_opening._tensor(*rest) for name, *rest in parts})


RECORD = StepRecord(
    step=3, kind="step", tape=bytes(32), values=[0.5, True, 7, -0.0], host=[1], rng={"0": (1, 2)}, state=bytes(32),
    checksums=bytes(8), rounding=bytes(32), batch=bytes(32), records=[4, 5], record_digests=[bytes(32), bytes(32)],
    free=["a", "b"], snapshots=[(b"ueid", 1, 2)], rounded=9, logged=1, collectives=[(1, bytes(32), bytes(32))],
)  # fmt: skip
PIECE = Piece(b"data", (bytes(32),))
FORMS: dict[str, tuple[Again, list[bytes]]] = {
    "a step record": (lambda data: StepRecord.from_cbor(data).to_cbor(), [RECORD.to_cbor()]),
    "a tape": (lambda data: Tape.decode(data).encode(), [example_tape().encode()]),
    "notes on chips": (
        lambda data: chip_notes.decode(data).encode(), [ChipNotes(("a", "w"), ((b"ueid", 1, 2, 3),)).encode()],
    ),
    "state that came back": (
        lambda data: returned_state.decode(data).encode(),
        [Returned({2: Held({"w": (4, bytes(32))}, {"0": 7})}, {(3, "f0"): (2, "w"), (3, "f1"): (2, "w")}).encode()],
    ),
    "notes on what entered": (
        lambda data: entry_notes.encode(entry_notes.decode(data)),
        [entry_notes.encode([EntryNote(3, "f0", "file", "a.py:1: x", "a.py:2: y"), EntryNote(3, "f1")])],
    ),
    "claims about training": (
        lambda data: training_claims.encode(training_claims.decode(data)),
        [training_claims.encode({bytes(32): Claims(stops=((3, -1), (4, 0)))})],
    ),
    "notes on resumptions": (
        lambda data: resumption_notes.encode(resumption_notes.decode(data)),
        [resumption_notes.encode([Resumption(4, 2, ((b"ueid", 9, 3, 1),)), Resumption(5, 2, (), "cpu")])],
    ),
    "a layout": (
        lambda data: layout.encode(layout.decode(data)),
        [layout.encode([Shard("v", "f32", (), (), ()), Shard("w", "f32", (4, 2), (0, 0), (2, 2))])],
    ),
    "a job": (
        lambda data: JobRecord.decode(data).encode(), [JobRecord(bytes(16), (("data", 2), ("tensor", 3))).encode()],
    ),
    "openings": (
        lambda data: collective_openings.encode(collective_openings.decode(data)),
        [collective_openings.encode([Opening(Target(1, 2, 0, 3), PIECE, (PIECE, PIECE))])],
    ),
    "chunks": (
        lambda data: collective_openings.encode_targets(collective_openings.decode_targets(data)),
        [collective_openings.encode_targets([Target(1, 2, 0, 3), Target(1, 2, 0, 4)])],
    ),
    "an opened record": (_record, [record_opening.encode({"x": torch.zeros(2), "y": torch.tensor([True])})]),
    "a data commitment": (
        lambda data: DataCommitment.from_cbor(data).to_cbor(),
        [
            DataCommitment(bytes(64), order).to_cbor()
            for order in ((0, 1, 1), OrderSeed(3, 2), VerifiableOrder(bytes(32), 2))
        ],
    ),
}  # fmt: skip

NUMBERS = (None, True, False, 0, 1, 2, -1, 1 << 62, 1 << 63, 0.0, -0.0, 1.0, 2.0, math.nan)
OTHERS = (b"", b"\x00", bytes(32), "", "a", "~0/1", "device", "data", [], [0], [[]], {})
ODD: st.SearchStrategy[Any] = st.sampled_from((*NUMBERS, *OTHERS))
NAMES = st.sampled_from(["device", "collectives", "format", "more", "snapshots", ""])


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a nest, the whole of it included."""
    yield at
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*at, key))


def changed(value: Any, data: st.DataObject) -> Any:
    """The nest with something odd in the place of a part, or a part more, less, twice or in another order."""
    whole = [copy.deepcopy(value)]
    *way, last = (0, *data.draw(st.sampled_from(list(places(value)))))
    owner: Any = whole
    for key in way:
        owner = owner[key]
    part = owner[last]
    match data.draw(st.integers(0, 3)):
        case 0 if isinstance(part, dict):
            part[data.draw(NAMES)] = data.draw(ODD)
        case 1 if isinstance(part, list) and part:
            part.append(copy.deepcopy(data.draw(st.sampled_from(part))))
        case 2 if isinstance(part, list):
            part.reverse()
        case 3 if part is not whole[0]:
            del owner[last]
        case _:
            owner[last] = data.draw(ODD)
    return whole[0]


@pytest.mark.parametrize("form", FORMS)
def test_what_was_written_is_written_again_as_the_same_bytes(form: str) -> None:
    again, written = FORMS[form]
    for data in written:
        assert again(data) == data


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=150)
@given(data=st.data())
def test_what_is_accepted_is_written_again_as_the_same_bytes(form: str, data: st.DataObject) -> None:
    """encode(decode(b)) == b for all bytes b that a decoder accepts: honest ones with some odd parts."""
    again, written = FORMS[form]
    nest = decode_cbor(data.draw(st.sampled_from(written)))
    for _ in range(data.draw(st.integers(1, 2))):
        nest = changed(nest, data)
    encoded = cbor(nest)
    try:
        found = again(encoded)
    except WeighbridgeError:
        return
    assert found == encoded


def test_a_resumption_that_names_no_device_does_not_have_the_key() -> None:
    named = {"step": 3, "begin": 1, "snapshots": []}
    assert resumption_notes.decode(cbor([named]))[0].device is None
    with pytest.raises(WeighbridgeError, match="device"):
        resumption_notes.decode(cbor([{**named, "device": None}]))
