"""Neither party chooses nonce or key of a record, and no other record passes for it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl import bindings
from support.outcomes import PROVER, TERMS, VERIFIER, WORKER, Start, outcome, start

from weighbridge.attest import outcome_agreement, signed_outcome
from weighbridge.attest.manifest import SigningKey
from weighbridge.attest.outcome_agreement import Agreement, Committed, Opened, Side
from weighbridge.attest.outcome_record import encode
from weighbridge.attest.outcome_terms import OutcomeError
from weighbridge.attest.outcome_values import Outcome
from weighbridge.attest.signed_outcome import audit, sign, verify
from weighbridge.core.digests import record_digest

STARTED = start()


def _record(started: Start) -> Outcome:
    return outcome(nonce=started.agreement.nonce, key=started.key.public)


def test_an_honest_record_is_read_and_its_key_and_signature_are_the_only_ones() -> None:
    data = sign(_record(STARTED), STARTED.key)
    assert verify(data, STARTED.agreement, STARTED.key.public) == _record(STARTED)
    audit(data, STARTED.agreement, *STARTED.secrets)
    again = start()
    assert again.agreement.nonce != STARTED.agreement.nonce
    assert again.key.public != STARTED.key.public


def test_an_agreement_comes_back() -> None:
    """Law: from_cbor(a.to_cbor()) == a."""
    assert Agreement.from_cbor(STARTED.agreement.to_cbor()) == STARTED.agreement


@given(at=st.integers(0), value=st.integers(0, 255), cut=st.integers(0))
@settings(deadline=None)
def test_an_altered_agreement_is_refused(at: int, value: int, cut: int) -> None:
    honest = STARTED.agreement.to_cbor()
    data = bytearray(honest)
    data[at % len(data)] = value
    for each in (bytes(data), bytes(data[: cut % len(data)]), bytes(data) + b"\x00"):
        with suppress(OutcomeError):
            Agreement.from_cbor(each)
            assert each == honest


def test_a_prover_that_waits_for_the_share_before_it_commits_gets_none() -> None:
    """It would try commitments until it likes the nonce."""
    side = Side(TERMS, "verifier", VERIFIER)
    with pytest.raises(OutcomeError) as caught:
        side.open()
    assert caught.value.reason == "outcome.agreement"
    side.take(Side(TERMS, "prover", PROVER).commit())
    assert len(side.open().share) == 32


@pytest.mark.finding("outcome.agreement")
def test_a_prover_that_grinds_its_share_is_caught() -> None:
    """Once it has seen the other share it looks for one of its own under which the nonce ends in a zero byte."""
    verifier, prover = Side(TERMS, "verifier", VERIFIER), Side(TERMS, "prover", PROVER)
    verifier.take(prover.commit())
    prover.take(verifier.commit())
    seen, own = verifier.open(), prover.open()
    for number in range(1, 1000):
        ground = Opened(number.to_bytes(32, "big"), own.secret_digest)
        with pytest.raises(OutcomeError, match="another share") as caught:
            verifier.agree(ground)
        with pytest.raises(OutcomeError, match="another share"):
            Agreement(TERMS, prover.commit(), ground, verifier.commit(), seen)
        if number == 20:
            break
    assert caught.value.reason == "outcome.agreement"
    with pytest.raises(OutcomeError, match="second commitment"):
        verifier.take(Side(TERMS, "prover", PROVER).commit())
    assert verifier.agree(own).nonce == prover.agree(seen).nonce


def test_a_prover_that_plays_the_verifiers_commitment_back_is_caught() -> None:
    """With the share of the other as its own it would know the nonce beforehand."""
    verifier = Side(TERMS, "verifier", VERIFIER)
    theirs = verifier.commit()
    with pytest.raises(OutcomeError, match="not signed by the prover"):
        verifier.take(theirs)

    signed = Committed(theirs.commitment, PROVER.sign(outcome_agreement._COMMITTED + theirs.commitment))
    verifier.take(signed)
    with pytest.raises(OutcomeError, match="another share"):
        verifier.agree(verifier.open())


def test_a_party_that_gives_the_worker_another_secret_is_caught() -> None:
    one, two = STARTED.secrets
    for prover, verifier in ((b"p" * 32, two), (one, b"v" * 32), (two, one), (one, b"")):
        with pytest.raises(OutcomeError, match="another secret"):
            STARTED.agreement.worker_key(prover, verifier)


def test_commitments_are_to_these_terms_and_by_these_keys() -> None:
    other = replace(TERMS, attempt=1)
    with pytest.raises(OutcomeError, match="not signed"):
        Side(TERMS, "prover", PROVER).take(Side(TERMS, "prover", PROVER).commit())
    with pytest.raises(OutcomeError, match="another key"):
        Side(TERMS, "prover", VERIFIER)
    verifier, prover = Side(TERMS, "verifier", VERIFIER), Side(other, "prover", PROVER)
    verifier.take(prover.commit())  # a commitment hides what it is to
    prover.take(verifier.commit())
    with pytest.raises(OutcomeError, match="another share"):
        verifier.agree(prover.open())


@pytest.mark.finding("outcome.nonce")
def test_a_record_of_another_start_is_no_record_of_this_one() -> None:
    """An old outcome played back, and one of another size class."""
    again = start()
    old = sign(_record(STARTED), STARTED.key)
    with pytest.raises(OutcomeError) as caught:
        verify(old, again.agreement, STARTED.key.public)
    assert caught.value.reason == "outcome.nonce"
    larger = sign(replace(_record(again), size=2), again.key)
    with pytest.raises(OutcomeError) as caught:
        verify(larger, again.agreement, again.key.public)
    assert caught.value.reason == "outcome.nonce"


@pytest.mark.finding("outcome.signature")
def test_a_record_by_another_key_is_refused() -> None:
    """A Prover that signs its own; and one that changes a byte of the worker's."""
    own = sign(replace(_record(STARTED), key=WORKER.public), WORKER)
    with pytest.raises(OutcomeError) as caught:
        verify(own, STARTED.agreement, STARTED.key.public)
    assert caught.value.reason == "outcome.signature"
    with pytest.raises(OutcomeError):
        audit(own, STARTED.agreement, *STARTED.secrets)
    honest = sign(_record(STARTED), STARTED.key)
    with pytest.raises(OutcomeError) as caught:
        verify(honest[:-1] + bytes([honest[-1] ^ 1]), STARTED.agreement, STARTED.key.public)
    assert caught.value.reason == "outcome.signature"


def test_a_key_of_low_order_signs_nothing() -> None:
    """Under the neutral point one signature verifies for every message."""
    record, neutral = _record(STARTED), b"\x01" + bytes(31)
    forged = replace(record, key=neutral)

    with pytest.raises(OutcomeError) as caught:
        verify(encode(forged) + neutral + bytes(32), STARTED.agreement, neutral)
    assert caught.value.reason == "outcome.signature"


def test_a_signature_that_the_worker_chose_is_caught_by_an_audit() -> None:
    """With a nonce of its own a signer hides bits in a signature that verifies; the secrets show that it did."""

    body = encode(_record(STARTED))
    seed = record_digest("outcome-key/1", [STARTED.agreement.nonce, *STARTED.secrets])
    chosen = body + _sign_with(seed, signed_outcome._SIGNED + body, 123456789)
    assert verify(chosen, STARTED.agreement, STARTED.key.public) == _record(STARTED)
    with pytest.raises(OutcomeError, match="chose it") as caught:
        audit(chosen, STARTED.agreement, *STARTED.secrets)
    assert caught.value.reason == "outcome.signature"


def _sign_with(seed: bytes, message: bytes, r: int) -> bytes:
    """Signs with the scalar r where Ed25519 would derive one from key and message."""
    order = 2**252 + 27742317777372353535851937790883648493
    half = bytearray(hashlib.sha512(seed).digest()[:32])
    half[0] &= 248
    half[31] = half[31] & 63 | 64
    public = SigningKey(Ed25519PrivateKey.from_private_bytes(seed)).public
    point = bindings.crypto_scalarmult_ed25519_base_noclamp(r.to_bytes(32, "little"))
    k = int.from_bytes(hashlib.sha512(point + public + message).digest(), "little") % order
    s = (r + k * int.from_bytes(half, "little")) % order
    return point + s.to_bytes(32, "little")


@given(one=st.binary(max_size=64), two=st.binary(max_size=64))
def test_messages_and_sides_have_one_encoding(one: bytes, two: bytes) -> None:
    """Law: `from_cbor(m.to_cbor()) == m`, of commitments and shares; a side goes on where it was."""
    assert Committed.from_cbor(Committed(one, two).to_cbor()) == Committed(one, two)
    assert Opened.from_cbor(Opened(one, two).to_cbor()) == Opened(one, two)
    for read, other in ((Committed, Opened(one, two)), (Opened, Committed(one, two))):
        with pytest.raises(OutcomeError):
            read.from_cbor(other.to_cbor())


@given(data=st.binary(max_size=200))
def test_other_bytes_are_no_message(data: bytes) -> None:
    for read in (Committed, Opened, Side):
        with suppress(OutcomeError):
            assert read.from_cbor(data).to_cbor() == data


def test_a_side_goes_on_in_another_process() -> None:
    one, two = Side(TERMS, "prover", PROVER), Side(TERMS, "verifier", VERIFIER)
    one = Side.from_cbor(one.to_cbor())
    with pytest.raises(OutcomeError, match="not committed"):
        one.open()
    one.take(two.commit())
    two.take(one.commit())
    again = Side.from_cbor(one.to_cbor())
    assert again.to_cbor() == one.to_cbor()
    assert again.agree(two.open()) == two.agree(one.open())
    with pytest.raises(OutcomeError, match="second commitment"):
        again.take(Side(TERMS, "verifier", VERIFIER).commit())
