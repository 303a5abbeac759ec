"""Nonces that nobody keeps: authentic, for one chip, for a while, once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.contact.nonces import EXPIRY_S, Nonces
from weighbridge.core.errors import TokenError

UEID, OTHER = b"a" * 17, b"b" * 17


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20))
def test_a_nonce_says_what_it_was_given_for(sizes: list[int]) -> None:
    nonces = Nonces(lambda: 1e9)
    given = [nonces.give(UEID, size) for size in sizes]
    assert len(set(given)) == len(given)
    read = [nonces.read(UEID, each) for each in given]
    assert [each.size for each in read] == sizes
    assert [each.time_ms for each in read] == [10**12] * len(read)
    nonces.use(UEID, read[-1])
    for each in given:
        with pytest.raises(TokenError):
            nonces.read(UEID, each)


@given(st.binary(max_size=40), st.integers(0, 255), st.integers(0, 31))
def test_altered_and_foreign_nonces_are_refused(made_up: bytes, bits: int, place: int) -> None:
    nonces = Nonces(lambda: 1e9)
    nonce = nonces.give(UEID, 7)
    altered = bytearray(nonce)
    altered[place] ^= bits
    for ueid, wrong in ((UEID, made_up), (OTHER, nonce), (UEID, nonce + b"x"), (UEID, nonce[:-1])):
        with pytest.raises(TokenError) as caught:
            nonces.read(ueid, wrong)
        assert caught.value.reason == "chip.nonce.mismatch"
    with pytest.raises(TokenError):
        Nonces(lambda: 1e9).read(UEID, nonce)  # of another process
    if bits:
        with pytest.raises(TokenError):
            nonces.read(UEID, bytes(altered))
    else:
        assert nonces.read(UEID, bytes(altered)).size == 7


def test_a_nonce_expires_and_is_used_by_one_of_two_calls() -> None:
    now = [1e9]
    nonces = Nonces(lambda: now[0])
    nonce = nonces.give(UEID, 0)
    now[0] += EXPIRY_S - 1
    one, two = nonces.read(UEID, nonce), nonces.read(UEID, nonce)
    nonces.use(UEID, one)
    with pytest.raises(TokenError):
        nonces.use(UEID, two)
    later = nonces.give(UEID, 0)
    now[0] += EXPIRY_S + 1
    with pytest.raises(TokenError, match="600 s ago"):
        nonces.read(UEID, later)
