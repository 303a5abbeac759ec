"""Orders of trainings have one encoding, and bind the two parties that signed them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.audited import key
from support.ordered import CLIENT, ORDER, SERVICE, accepted

from weighbridge.attest.training_order import LOGS, OrderError, SignedOrder, TrainingOrder, sign
from weighbridge.core.digests import cbor

_DIGESTS = st.binary(min_size=32, max_size=32)


@given(
    steps=st.integers(1, (1 << 32) - 1),
    numbers=st.dictionaries(_DIGESTS, _DIGESTS, min_size=1, max_size=4),
    seed=st.none() | st.integers(0, (1 << 64) - 1),
    logs=st.sampled_from(LOGS),
    least=st.integers(0, 9),
    nonce=_DIGESTS,
    name=st.text(min_size=1, max_size=20).filter(str.isprintable),
)
@settings(deadline=None)
def test_orders_come_back(least: int, **changes: Any) -> None:
    """Law: from_cbor(o.to_cbor()) == o, also when both parties have signed it."""
    runs = {min(changes["numbers"]): min(least, changes["steps"])} if least else {}
    order = replace(ORDER, **changes, runs=runs)
    assert TrainingOrder.from_cbor(order.to_cbor()) == order
    assert (order.digest == ORDER.digest) == (order == ORDER)
    signed = accepted(order)
    assert SignedOrder.from_cbor(signed.to_cbor()) == signed
    assert signed.require_accepted() == order


@given(at=st.integers(0), value=st.integers(0, 255), cut=st.integers(0))
@settings(deadline=None)
@pytest.mark.finding("order.malformed")
def test_bytes_are_an_order_or_refused(at: int, value: int, cut: int) -> None:
    """Law: from_cbor(data).to_cbor() == data, or data is refused; of a signed order no byte can be another."""
    whole = accepted().to_cbor()
    for reader, data in ((TrainingOrder, bytearray(ORDER.to_cbor())), (SignedOrder, bytearray(whole))):
        data[at % len(data)] = value
        for each in (bytes(data), bytes(data[: cut % len(data)]), bytes(data) + b"\x00"):
            with suppress(OrderError):
                assert reader.from_cbor(each).to_cbor() == each
                assert reader is TrainingOrder or each == whole


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""}, {"name": "a\n"}, {"name": b"a"}, {"client": b"c"}, {"client": ORDER.service}, {"steps": 0},
        {"steps": True}, {"steps": 1 << 32}, {"passport": b""}, {"passport": "p" * 32}, {"numbers": {}},
        {"numbers": []}, {"numbers": {b"a": b"1" * 32}}, {"numbers": {b"a" * 32: b"1"}},
        {"numbers": {number.to_bytes(32): b"1" * 32 for number in range(257)}}, {"data": b""}, {"records": 0},
        {"records": 1.0}, {"seed": -1}, {"seed": 1 << 64}, {"seed": True}, {"logs": "none"}, {"logs": b"full"},
        {"nonce": b"n"},
    ],
)  # fmt: skip
@pytest.mark.finding("order.malformed")
def test_what_is_no_order_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(OrderError) as caught:
        replace(ORDER, **changes)
    assert caught.value.reason == "order.malformed"
    with pytest.raises(OrderError):
        TrainingOrder.from_cbor(cbor({**cbor2.loads(ORDER.to_cbor()), **changes}))


def test_other_maps_are_refused() -> None:
    plain, signed = cbor2.loads(ORDER.to_cbor()), cbor2.loads(accepted().to_cbor())
    others: list[Any] = [{**plain, "more": 1}, {**plain, "format": 2}, {**plain, "format": True}, {"format": 1}, []]
    for each in others:
        with pytest.raises(OrderError):
            TrainingOrder.from_cbor(cbor(each))
    for each in ({**signed, "ordered": b""}, {**signed, "accepted": b"x"}, {**signed, "order": plain}, {}):
        with pytest.raises(OrderError):
            SignedOrder.from_cbor(cbor(each))
    with pytest.raises(OrderError):
        SignedOrder.from_cbor(bytes(1 << 17))


@pytest.mark.finding("order.signature")
def test_only_the_two_parties_sign_an_order_each_in_its_role() -> None:
    made, other = sign(ORDER, CLIENT), key(33)
    assert made.accept(SERVICE).require_accepted() == ORDER
    for wrong in (
        lambda: sign(ORDER, other),
        lambda: made.accept(other),
        made.require_accepted,
        lambda: replace(made, accepted=made.ordered),
        lambda: replace(made.accept(SERVICE), order=replace(ORDER, steps=5)),
        lambda: SignedOrder(order=ORDER, ordered=made.accept(SERVICE).accepted),
        lambda: sign(replace(ORDER, client=bytes(32)), CLIENT),
    ):
        with pytest.raises(OrderError) as caught:
            wrong()
        assert caught.value.reason == "order.signature"
