"""Tokens of confidential boots: what is hidden is committed to, of one size, and opens the one token that it is of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.token_strategies import BODIES, digest

from weighbridge.attest import hidden_fields, tokens
from weighbridge.attest.hidden_fields import HiddenFields, hide, reveal
from weighbridge.attest.tokens import HiddenBody, Kind, Token
from weighbridge.attest.work import END, NAMES, Work
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, TokenError, WeighbridgeError

works = st.builds(Work, **dict.fromkeys(NAMES, st.integers(0, END - 1)))
ENTRIES: tuple[Kind, ...] = ("boot", "event", "snapshot")


def entry(kind: Kind, body: dict[str, Any], work: Work, **claims: Any) -> Token:
    made: dict[str, Any] = {
        "ueid": bytes(17), "nonce": None, "index": 3, "previous": bytes(32), "boot_count": 1, "boot_seed": bytes(32),
        "uptime_ms": 5, "time_ms": 9, "hwmodel": b"m", "firmware_version": "1", "debug": False,
    }  # fmt: skip
    return Token(kind=kind, body=body, work=work, **(made | claims))


entries = st.sampled_from(ENTRIES).flatmap(lambda kind: st.builds(entry, st.just(kind), BODIES[kind], works))
OWN = entry("event", {"name": "interrupt-idle", "digest": bytes(32)}, Work(flops=7))
DRAFT = entry("event", {"name": "manifest-draft", "digest": b"d" * 32}, Work(flops=7, kernels=3))


@given(token=entries)
def test_what_is_hidden_is_revealed(token: Token) -> None:
    """Law: reveal(*hide(token)) == token, also by way of the bytes that are signed."""
    hidden, opening = hide(token)
    read = tokens.decode_claims(tokens.encode_claims(hidden))
    assert read == hidden
    assert reveal(read, opening) == token
    assert isinstance(read.body, HiddenBody) == (token.kind != "boot" and not tokens.is_own(token))


@given(blinding=digest, work=works, body=st.none() | st.sampled_from(ENTRIES).flatmap(BODIES.__getitem__))
def test_openings_are_read_as_they_are_written(blinding: bytes, work: Work, body: dict[str, Any] | None) -> None:
    """Law: from_cbor(h.to_cbor()) == h."""
    made = HiddenFields(blinding=blinding, work=work, body=body)
    assert HiddenFields.from_cbor(made.to_cbor()) == made


@given(data=st.binary(max_size=200) | st.binary().map(lambda each: cbor({"blinding": each, "fields": {}})))
def test_hostile_bytes_open_nothing(data: bytes) -> None:
    """Law: where from_cbor(data) returns, its to_cbor() is data."""
    with pytest.raises(WeighbridgeError):
        reveal(hide(DRAFT)[0], data)
    try:
        found = HiddenFields.from_cbor(data)
    except FormatError:
        return
    assert found.to_cbor() == data


@given(one=entries, other=entries)
def test_the_size_of_a_token_says_nothing_of_what_it_hides(one: Token, other: Token) -> None:
    def size(token: Token) -> int:
        hidden = hide(token)[0]
        return len(tokens.encode_claims(replace(hidden, kind="event" if token.kind != "boot" else "boot")))

    hidden = [isinstance(hide(each)[0].body, HiddenBody) for each in (one, other)]
    if all(hidden):
        assert size(one) == size(other)


def test_one_thing_is_hidden_in_another_way_each_time() -> None:
    assert hide(DRAFT)[0].work != hide(DRAFT)[0].work


def test_what_the_chip_logs_by_itself_stays_and_looks_are_no_excuse() -> None:
    assert hide(OWN)[0].body == OWN.body
    shaped = replace(OWN, body={"name": "interrupt-idle", "digest": b"x" * 32})
    assert isinstance(hide(shaped)[0].body, HiddenBody)


@pytest.mark.finding("chip.hidden.mismatch")
@pytest.mark.parametrize(
    "altered",
    [
        lambda token, opening: (token, opening[:-1] + bytes([opening[-1] ^ 1])),
        lambda token, opening: (token, opening.replace(b"manifest-draft", b"manifest-drafu")),
        lambda token, opening: (token, b""),
        lambda token, opening: (token, opening + b"\0"),
        lambda token, opening: (token, hide(DRAFT)[1]),
        lambda token, opening: (replace(token, index=4), opening),
        lambda token, opening: (replace(token, boot_count=2), opening),
        lambda token, opening: (replace(token, ueid=b"x" * 17), opening),
        lambda token, opening: (replace(token, body=OWN.body), opening),
        lambda token, opening: (replace(token, kind="snapshot"), opening),
    ],
    ids=["bit", "name", "empty", "longer", "of-another", "index", "boot", "chip", "body-shown", "kind"],
)
def test_another_opening_opens_nothing(altered: Callable[[Token, bytes], tuple[Token, bytes]]) -> None:
    hidden, opening = hide(DRAFT)
    assert reveal(hidden, opening) == DRAFT
    with pytest.raises(TokenError) as caught:
        reveal(*altered(hidden, opening))
    assert caught.value.reason == "chip.hidden.mismatch"


@pytest.mark.parametrize(
    "body",
    [
        {"name": "interrupt-idle", "digest": bytes(32)},  # an interrupt, which is to be seen
        {"name": "", "digest": bytes(32)},
        {"name": "x"},
        {"name": ["x"], "digest": bytes(32)},
        {},
    ],
)
def test_a_chip_cannot_have_committed_to_what_no_token_says(body: dict[str, Any]) -> None:
    fields = HiddenFields(blinding=bytes(32), work=Work(), body=body)
    hidden = HiddenBody(fields.commitment(DRAFT.ueid, DRAFT.boot_count, DRAFT.index))
    with pytest.raises(TokenError) as caught:
        reveal(replace(DRAFT, body=hidden, work=hidden), fields.to_cbor())
    assert caught.value.reason == "chip.hidden.mismatch"


@pytest.mark.parametrize(
    "changes",
    [
        {"body": HiddenBody(bytes(32))},  # with the counters shown
        {"work": HiddenBody(bytes(32)), "body": HiddenBody(b"x" * 32)},
        {"work": HiddenBody(bytes(31)), "body": HiddenBody(bytes(31))},
        {"work": HiddenBody(bytes(32)), "body": HiddenBody(bytes(32)), "kind": "boot"},
        {"work": HiddenBody(bytes(32)), "body": HiddenBody(bytes(32)), "kind": "head", "nonce": bytes(8)},
        {"work": HiddenBody(cast("bytes", 1))},
    ],
)
def test_no_token_hides_otherwise(changes: dict[str, Any]) -> None:
    with pytest.raises(TokenError):
        tokens.encode_claims(replace(DRAFT, **changes))


def test_a_head_hides_no_counters() -> None:
    body = {"size": 3, "last": bytes(32), "root": bytes(32), "log_key": bytes(32), "counter": 3}
    head = entry("head", body, Work(), nonce=bytes(8))
    tokens.encode_claims(head)
    with pytest.raises(TokenError):
        tokens.encode_claims(replace(head, work=HiddenBody(bytes(32))))


def test_a_body_that_is_hidden_is_read_by_no_party() -> None:
    hidden = hide(DRAFT)[0]
    assert tokens.event_name(hidden) is None
    assert tokens.counters(hidden) is None
    with pytest.raises(TokenError, match="sealed inspection"):
        tokens.shown(hidden)
    assert tokens.event_name(DRAFT) == "manifest-draft"


def test_the_longest_name_fits_into_an_opening() -> None:
    longest = replace(DRAFT, body={"name": "\u1234" * 100, "digest": bytes(32)})
    assert len(hide(longest)[1]) < hidden_fields.OPENING_LIMIT
