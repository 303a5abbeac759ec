"""Entries of the registry's log.

Round trip: decode(entry(x)) == x for every x that can be logged, and encoding it again gives the same bytes.
"""

from __future__ import annotations

import string
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import example, given, settings
from hypothesis import strategies as st

from verifier.registry.entries import (
    ROLES,
    Addressed,
    Listing,
    Opened,
    Party,
    addressed_entries,
    decode,
    listed_entries,
    opened_entry,
    party_entry,
    statement_entry,
)
from verifier.registry.transitions import STATES
from weighbridge.attest.custody_statements import CustodyError, Statement, encode_key, read, sign
from weighbridge.attest.tiles import MAX_ENTRY_BYTES
from weighbridge.core.digests import cbor
from weighbridge.core.errors import WeighbridgeError

KEY = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
DER = encode_key(KEY.public_key())

times = st.integers(0, (1 << 40) - 1)
ueids = st.binary(min_size=17, max_size=33)
texts = st.text(st.characters(categories=("L", "N", "P")), max_size=200)
listings = st.builds(
    Listing, ueid=ueids, state=st.sampled_from(STATES), owner=texts, site=texts, chip_type=texts, address=texts,
    prover_address=texts, name=texts,
)  # fmt: skip
parties = st.builds(
    Party,
    name=st.text(string.ascii_lowercase, min_size=1, max_size=63),
    roles=st.sets(st.sampled_from(ROLES)).map(lambda some: tuple(role for role in ROLES if role in some)),
    key=st.just(DER),
)
addresses = st.builds(Addressed, ueid=ueids, address=texts, prover_address=texts, name=texts)
openings = st.builds(Opened, name=texts, key=st.binary(min_size=32, max_size=32))


@settings(max_examples=60, deadline=None)
@given(times, st.lists(listings, min_size=1, max_size=200), st.lists(addresses, min_size=1, max_size=5))
def test_rows_are_read_as_they_were_written(at_s: int, chips: list[Listing], moved: list[Addressed]) -> None:
    """However many they are: they are spread over as many entries as it takes, in order."""
    for rows, entries in ((chips, listed_entries(at_s, chips)), (moved, addressed_entries(at_s, moved))):
        found: list[object] = []
        for entry, part in entries:
            assert len(entry) <= MAX_ENTRY_BYTES
            assert decode(entry) == (at_s, tuple(part))
            found += part
        assert found == rows


@settings(max_examples=60, deadline=None)
@given(times, parties, openings)
def test_declarations_are_read_as_they_were_written(at_s: int, party: Party, opened: Opened) -> None:
    assert decode(party_entry(at_s, party)) == (at_s, party)
    assert decode(opened_entry(at_s, opened)) == (at_s, opened)


def test_a_statement_is_logged_byte_for_byte() -> None:
    data = sign(Statement(kind="lost", registry="r", by="acme", time_s=1, chips=(bytes(17),)), KEY)
    assert decode(statement_entry(5, data)) == (5, read(data))


def test_long_tables_need_several_entries() -> None:
    row = Listing(ueid=bytes(33), state="sold", owner="o" * 200, site="", chip_type="", address="", prover_address="")
    assert len(list(listed_entries(1, [row] * 1000))) > 1
    assert list(listed_entries(1, [])) == []


ROW = [bytes(17), "sold", "acme", "", "", "", ""]


@pytest.mark.parametrize(
    "raw",
    [
        [1, "unheard", b""],
        [-1, "statement", b""],
        [True, "opened", ["r", bytes(32)]],
        [1, "statement", b"\xd2"],
        [1, "statement", "text"],
        [1, "opened", ["r", bytes(31)]],
        [1, "opened", ["two\nlines", bytes(32)]],
        [1, "party", ["Acme", ["owner"], DER]],
        [1, "party", ["acme", "owner", DER]],
        [1, "party", ["acme", ["owner", "owner"], DER]],
        [1, "party", ["acme", ["inspector", "owner"], DER]],
        [1, "party", ["acme", ["owner"], DER + b"\x00"]],
        [1, "party", ["acme", ["owner"], "key"]],
        [1, "party", ["acme", ["owner"]]],
        [1, "listed", []],
        [1, "listed", [ROW[:-1]]],
        [1, "listed", [[bytes(16), *ROW[1:]]]],
        [1, "listed", [[ROW[0], "stolen", *ROW[2:]]]],
        [1, "listed", [[*ROW[:-1], 5]]],
        [1, "listed", [[*ROW, ""]]],  # a chip without a name has none there
        [1, "listed", [[*ROW, 5]]],
        [1, "listed", [[*ROW, "a", "b"]]],
        [1, "addressed", [[bytes(17), "a", "b", "c", "d"]]],
        [1, "addressed", [[bytes(17), "a", "b", ""]]],
        [1, "listed", {"a": 1}],
        [1, "listed"],
        5,
    ],
)
def test_other_entries_are_refused(raw: Any) -> None:
    with pytest.raises(CustodyError):
        decode(cbor(raw))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
@example(cbor([1, "listed", [ROW]])[:-1])
def test_hostile_bytes_raise_only_our_errors(data: bytes) -> None:
    with pytest.raises(WeighbridgeError):
        decode(data)
