import collections
import itertools
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from weighbridge.core import merkle
from weighbridge.core.digests import bytes_digest, cbor, record_digest
from weighbridge.core.errors import FormatError, UsageError, WeighbridgeError
from weighbridge.transcript.data import (
    DataCommitment,
    OrderSeed,
    VerifiableOrder,
    batch_digest,
    fair_draws,
    flatten,
    micro_batches,
    permutation,
    record_digests,
)

X, Y = torch.arange(12.0).reshape(3, 4), torch.tensor([1, 2, 3])


@dataclass
class Pair:
    left: Any
    right: Any


class Encoding(collections.UserDict):
    """Looks like a mapping, as tokenizers' outputs do."""


class OnlyKeys:
    def keys(self):
        return ["x"]

    def __getitem__(self, key):
        return X


@pytest.mark.parametrize(
    ("nest", "paths"),
    [
        (X, ["tensor"]),
        ({"b": X, "a": Y}, ["a", "b"]),
        ([X, {"image": Y}], ["0", "1.image"]),
        ((X, (Y, X)), ["0", "1.0", "1.1"]),
        (Pair(X, Pair(Y, None)), ["left", "right.left"]),
        (Encoding({"input_ids": X}), ["input_ids"]),
        (OnlyKeys(), ["x"]),
        ({1: X, "n": None, "s": "text"}, ["1"]),
        ({}, []),
        (None, []),
    ],
)
def test_flatten(nest, paths):
    assert list(flatten(nest)) == paths


def test_flatten_keeps_the_tensors_and_notes_the_rest():
    flat = flatten({"x": X, "n": None, "list": [1, "a"]})
    assert flat["x"] is X
    assert flat.ignored == {"list.0": "int", "list.1": "str", "n": "NoneType"}


def test_nests_that_have_no_flat_form():
    endless: list[Any] = []
    endless.append(endless)
    for nest in ({"a.b": X, "a": {"b": Y}}, {1: X, "1": Y}, {"b\n": Y}, endless):
        with pytest.raises(UsageError):
            flatten(nest)


def test_batch_digest_depends_on_every_part():
    base = {"x": X, "y": Y}
    others = [
        ({"x": X, "z": Y}, {}),
        ({"x": X.reshape(4, 3), "y": Y}, {}),
        ({"x": X.to(torch.float64), "y": Y}, {}),
        ({"x": X.view(torch.int32), "y": Y}, {}),
        ({"x": -X, "y": Y}, {}),
        ({"x": X}, {"y": Y}),
        ({"x": X}, {}),
        ({}, {}),
    ]
    assert len({batch_digest(base), *(batch_digest(*other) for other in others)}) == 9
    assert batch_digest(base) == batch_digest({"y": Y.clone(), "x": X.t().contiguous().t()}, {})


shapes = st.lists(st.integers(0, 3), max_size=2)


layouts = st.dictionaries(st.text("abc.", min_size=1, max_size=3), shapes, min_size=1, max_size=3)


@given(layouts, st.integers(1, 4), st.randoms())
def test_a_record_has_the_same_digest_alone_and_stacked(layout, count, random):
    """record_digests of stacked records are the digests that a commitment over the records holds."""
    records = [{name: torch.full(shape, random.randint(0, 9)) for name, shape in layout.items()} for _ in range(count)]
    stacked = {name: torch.stack([record[name] for record in records]) for name in layout}
    data = DataCommitment.over(records, range(count))
    expected = [data.leaf(identity) for identity in range(count)]
    assert record_digests(stacked) == expected
    assert record_digests(stacked, count) == expected


@given(layouts, st.lists(st.integers(1, 3), min_size=2, max_size=12), st.randoms())
def test_the_records_of_micro_batches_are_those_of_each_in_turn(layout, sizes, random):
    """However many there are and of whatever sizes, if their number says so."""
    records = [
        {name: torch.full(shape, random.randint(0, 9)) for name, shape in layout.items()} for _ in range(sum(sizes))
    ]
    data = DataCommitment.over(records, range(len(records)))
    rows = iter(records)
    batches = []
    for size in sizes:
        part = [next(rows) for _ in range(size)]
        batches.append({name: torch.stack([record[name] for record in part]) for name in layout})
    flat = flatten(batches)
    assert [sorted(part) for part in micro_batches(flat)] == [sorted(layout)] * len(sizes)
    assert record_digests(flat, len(records)) == [data.leaf(identity) for identity in range(len(records))]
    assert len(record_digests(flat)) in (1, sizes[0])


@given(st.dictionaries(st.text("01.a", max_size=4), st.just(X), max_size=4))
def test_only_a_list_of_nests_is_micro_batches(flat):
    parts = micro_batches(flat)
    assert len(parts) != 1
    if parts:
        assert dict(flatten(parts)) == flat


def test_an_index_of_thousands_of_digits_is_a_name_and_no_end_of_the_reader():
    """Python converts none; a hostile transcript may have it all the same."""
    flat = {"0.x": X, f"{'1' * 5000}.x": X}
    assert micro_batches(flat) == []
    assert len(record_digests(flat, 7)) == 1


def test_batches_that_are_one_record():
    assert record_digests({}) == []
    for flat, count in (({"x": X, "y": Y[:2]}, None), ({"x": X, "s": torch.tensor(1)}, 3), ({"x": X}, 1)):
        assert len(record_digests(flat, count)) == 1
    assert record_digests({"x": X}, 1) == [DataCommitment.over([{"x": X}], [0]).leaf(0)]


def test_an_ordinary_data_loader_follows_the_commitment():
    records = [{"x": X + i, "y": torch.tensor(i)} for i in range(10)]
    data = DataCommitment.over(records, OrderSeed(3, 2))
    ids = data.ids().tolist()
    used = iter(ids)
    for batch in DataLoader(records, batch_size=4, sampler=ids):
        for digest in record_digests(flatten(batch)):
            assert digest == data.leaf(next(used))
    assert next(used, None) is None


def test_records_that_cannot_be_committed_to():
    for record in ({"x": X, "y": 3}, [X, True], {"x": X, "w": 0.5}, {}, "text"):
        with pytest.raises(UsageError):
            DataCommitment.over([record], [0])
    for records, order in (([], []), ([X], [1]), ([X], [-1])):
        with pytest.raises(UsageError):
            DataCommitment.over(records, order)
    with pytest.raises(UsageError):
        DataCommitment.over([X], [0]).leaf(1)


def reference(seed, epoch, count):
    """The documented order, word by word."""
    stream = blake3(b"weighbridge/order/1\x00" + cbor([seed, epoch, count])).digest(length=8 * (count + 8))
    words = iter(struct.unpack(f"<{count + 8}Q", stream))
    items = list(range(count))
    for i in range(count - 1, 0, -1):
        bound = 2**64 // (i + 1) * (i + 1)
        word = next(word for word in words if word < bound)
        j = word % (i + 1)
        items[i], items[j] = items[j], items[i]
    return items


@given(st.integers(0, 2**64 - 1), st.integers(0, 5), st.integers(0, 200))
def test_permutation_is_as_documented(seed, epoch, count):
    """permutation(seed, epoch, n) is the documented Fisher-Yates, and a permutation."""
    found = permutation(seed, epoch, count).tolist()
    assert found == reference(seed, epoch, count)
    assert sorted(found) == list(range(count))


def test_permutation_is_fixed_for_ever():
    assert permutation(7, 0, 10).tolist() == [3, 0, 7, 1, 5, 6, 2, 9, 8, 4]
    assert permutation(7, 1, 10).tolist() == [4, 9, 1, 5, 8, 0, 2, 3, 7, 6]


def test_unfair_words_are_skipped():
    """The largest 64-bit word is above every multiple of a bound that is no power of two."""
    bad = 2**64 - 1
    words = [bad, 1, 3, bad, bad, bad, 4] + [bad] * 300 + [bad - 1, 2]
    endless = itertools.chain(words, itertools.cycle([6]))
    stream = struct.pack("<2000Q", *itertools.islice(endless, 2000))
    expected, position = [], 0
    for bound in range(6, 1, -1):
        while struct.unpack_from("<Q", stream, 8 * position)[0] >= 2**64 // bound * bound:
            position += 1
        expected.append(struct.unpack_from("<Q", stream, 8 * position)[0] % bound)
        position += 1
    assert fair_draws(lambda length: stream[:length], 6).tolist() == expected
    assert position > 6


def test_order_seeds_are_checked():
    for seed, epochs in ((-1, 1), (2**64, 1), (0, 0), (0.5, 1), (0, True)):
        with pytest.raises(UsageError):
            OrderSeed(seed, epochs)


orders = (
    st.builds(OrderSeed, st.integers(0, 2**64 - 1), st.integers(1, 3))
    | st.builds(VerifiableOrder, st.binary(min_size=32, max_size=32), st.integers(1, 3))
    | st.lists(st.integers(0, 4), max_size=9)
)


@given(st.integers(5, 9), orders)
def test_round_trip(count, order):
    """from_cbor(to_cbor(c)) is c."""
    data = DataCommitment.over([torch.tensor(i) for i in range(count)], order)
    found = DataCommitment.from_cbor(data.to_cbor())
    assert found == data
    assert (found.digest(), found.root(), len(found)) == (data.digest(), data.root(), count)
    assert found.ids().tolist() == np.frombuffer(data.order_bytes(), dtype="<u8").tolist()
    assert data.root() == merkle.root([merkle.leaf_hash(data.leaf(i)) for i in range(count)])


def test_a_verifiable_order_follows_from_the_data():
    """Its seed is the documented one, and one other record gives another order."""
    records = [torch.tensor(i) for i in range(50)]
    data = DataCommitment.over(records, VerifiableOrder(bytes(32), 2))
    documented = record_digest("data-seed/1", [50, data.root(), bytes(32)])
    assert data.seed() == int.from_bytes(documented[:8], "little")
    assert data.ids().tolist() == [i for epoch in range(2) for i in permutation(data.seed(), epoch, 50).tolist()]
    others = (
        DataCommitment.over([*records[:-1], torch.tensor(99)], data.order),
        DataCommitment.over(records[:-1], data.order),
        DataCommitment.over(records, VerifiableOrder(b"r" * 32, 2)),
    )
    assert len({tuple(d.ids().tolist()[:40]) for d in (data, *others)}) == 4
    assert data.summary()["order"] == {"random": bytes(32), "epochs": 2}
    assert DataCommitment.over(records, [1]).seed() is None
    assert DataCommitment.over(records, OrderSeed(9, 1)).seed() == 9


def test_verifiable_orders_are_checked():
    for random, epochs in ((b"short", 1), ("0" * 32, 1), (bytes(32), 0), (bytes(32), True)):
        with pytest.raises(UsageError):
            VerifiableOrder(random, epochs)


def test_commitments_differ_in_digest():
    records = [torch.tensor(i) for i in range(5)]
    orders = ([0, 1], [1, 0], OrderSeed(0, 1), OrderSeed(0, 2), OrderSeed(1, 1))
    digests = {DataCommitment.over(records, order).digest() for order in orders}
    digests.add(DataCommitment.over(records[::-1], [0, 1]).digest())
    assert len(digests) == 6


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"leaves": bytes(32)},
        {"leaves": bytes(32), "order": b"", "more": 1},
        {"leaves": bytes(31), "order": b""},
        {"leaves": b"", "order": b""},
        {"leaves": [1], "order": b""},
        {"leaves": bytes(32), "order": bytes(7)},
        {"leaves": bytes(32), "order": b"\x01" + bytes(7)},
        {"leaves": bytes(32), "order": b"\xff" * 8},
        {"leaves": bytes(32), "order": [1]},
        {"leaves": bytes(32), "order": [1, 0]},
        {"leaves": bytes(32), "order": [True, 1]},
        {"leaves": bytes(32), "order": [bytes(31), 1]},
        {"leaves": bytes(32), "order": [bytes(32), 0]},
        {"leaves": bytes(32), "order": ["1", 1]},
        {"leaves": bytes(32), "order": None},
    ],
    ids=str,
)
def test_malformed_commitments_are_refused(value):
    with pytest.raises(FormatError):
        DataCommitment.from_cbor(cbor(value))


@given(st.binary(max_size=80))
def test_hostile_bytes(data):
    with pytest.raises(WeighbridgeError):
        DataCommitment.from_cbor(data)


def test_the_summary_says_what_is_committed_to():
    data = DataCommitment.over([X, Y], [1, 0, 1])
    order = bytes.fromhex("0100000000000000" + "0000000000000000" + "0100000000000000")
    assert data.summary() == {"records": 2, "root": data.root(), "order": {"count": 3, "blake3": bytes_digest(order)}}
    assert DataCommitment.over([X], OrderSeed(9, 4)).summary()["order"] == {"seed": 9, "epochs": 4}
