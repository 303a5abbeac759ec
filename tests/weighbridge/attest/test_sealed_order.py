"""An order has one encoding, and its nonce and digest depend on all of it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sealed_orders import FIELDS, sealed_order

from weighbridge.attest.sealed_order import Order, Session
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError


@given(st.none() | st.tuples(st.integers(0, 1 << 20), st.integers(1, 1 << 10)))
def test_an_order_is_read_as_it_was_written(steps: tuple[int, int] | None) -> None:
    made = sealed_order(steps=None if steps is None else (steps[0], steps[0] + steps[1]))
    assert Order.from_cbor(made.to_cbor()) == made


@given(st.binary(max_size=300))
def test_other_bytes_are_none(data: bytes) -> None:
    with pytest.raises(FormatError):
        Order.from_cbor(data)


def test_other_forms_are_none() -> None:
    made = sealed_order()
    value = [*(getattr(made, name) for name in FIELDS), [3, 9]]
    others = [value[:-1], [*value, 0], [*value[:-1], [9, 3]], [*value[:-1], [3]], [value[0][:31], *value[1:]]]
    for each in [*others, [*value[:-1], [True, 9]], ["x" * 32, *value[1:]], [*value[:-1], "39"]]:
        with pytest.raises(FormatError):
            Order.from_cbor(cbor(each))
    with pytest.raises(FormatError):
        Order.from_cbor(bytes(5000))


def test_every_field_counts() -> None:
    made = sealed_order()
    others = [replace(made, **{name: bytes(len(getattr(made, name)))}) for name in FIELDS] + [replace(made, steps=None)]
    assert len({each.digest for each in [made, *others]}) == 8
    assert [each.nonce != made.nonce for each in others] == [True, True, False, False, False, False, False]


def test_the_terms_are_the_channels() -> None:
    made, worker = sealed_order(), os.urandom(32)
    terms = made.terms(worker)
    assert (terms.nonce, terms.commitment, terms.worker, terms.prover) == (
        made.nonce, made.commitment, worker, made.prover,
    )  # fmt: skip


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(1, 1 << 31))
def test_an_order_of_a_session_is_read_as_it_was_written(case: bytes, agreement: bytes, leaves: int) -> None:
    session = Session(case=case, agreement=agreement, leaves_after_s=leaves)
    made = sealed_order(steps=None, session=session)
    assert Order.from_cbor(made.to_cbor()) == made
    assert made.digest != sealed_order(steps=None).digest


def test_other_sessions_are_none() -> None:
    made = sealed_order(steps=None)
    value = [*(getattr(made, name) for name in FIELDS), None]
    good = [bytes(32), bytes(32), 60]
    Order.from_cbor(cbor([*value, good]))
    others = [[], good[:-1], [*good, 0], [bytes(31), *good[1:]], [*good[:-1], 0], [*good[:-1], True], [*good[:-1], 6.5]]
    for each in others:
        with pytest.raises(FormatError):
            Order.from_cbor(cbor([*value, each]))
    with pytest.raises(FormatError):
        Order.from_cbor(cbor([*value, good, good]))
    with pytest.raises(FormatError):  # a session chooses its steps itself
        Order.from_cbor(cbor([*value[:-1], [3, 9], good]))
