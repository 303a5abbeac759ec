"""What a worker of a session takes up: what both parties signed, for this order and this worker, and nothing else."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.outcomes import PROVER, TERMS, VERIFIER, Start, start
from support.sealed_orders import sealed_order

from weighbridge.attest.outcome_terms import OutcomeError
from weighbridge.attest.sealed_channel import SealedInputError, WorkerKey
from weighbridge.attest.sealed_order import Order, Parts
from weighbridge.attest.sealed_session import (
    Preface,
    admitted,
    assent,
    seal_secret,
    session_of,
    state_key,
    stated_key,
)
from weighbridge.attest.worker_signer import WorkerSigner
from weighbridge.core.errors import UsageError

CASE = b"a case"
PARTS = ("agreement", "case", "prover_assent", "verifier_assent", "prover_box", "verifier_box")


@dataclass
class Sealed:
    start: Start
    order: Order
    worker: WorkerKey

    def preface(self, order: Order | None = None) -> Preface:
        named, agreed = order or self.order, self.start.agreement
        return Preface(
            agreement=agreed.to_cbor(), case=CASE, prover_assent=assent(named, PROVER),
            verifier_assent=assent(named, VERIFIER),
            prover_box=seal_secret(self.start.secrets[0], named, self.worker.public),
            verifier_box=seal_secret(self.start.secrets[1], named, self.worker.public),
        )  # fmt: skip


def sealed() -> Sealed:
    begun = start(TERMS)
    order = sealed_order(
        steps=None, session=session_of(begun.agreement, CASE),
        verifier_nonce=begun.agreement.verifier_opened.share, prover_nonce=begun.agreement.prover_opened.share,
    )  # fmt: skip
    return Sealed(begun, order, WorkerKey())


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=6, max_size=6))
def test_a_preface_is_read_as_it_was_written(parts: list[bytes]) -> None:
    """Law: receive(send(p)) == p."""
    made, sink = Preface(**dict(zip(PARTS, parts, strict=True))), io.BytesIO()
    made.send(sink)
    assert Preface.receive(io.BytesIO(sink.getvalue())) == made
    with pytest.raises(SealedInputError):
        Preface.receive(io.BytesIO(sink.getvalue()[:-1]))


@pytest.mark.finding("sealed.channel")
@pytest.mark.parametrize("length", [0, 1 << 31])
def test_a_message_has_no_other_length(length: int) -> None:
    with pytest.raises(SealedInputError):
        Preface.receive(io.BytesIO(length.to_bytes(4, "big") + bytes(100)))


def test_both_parties_are_admitted_with_the_one_key() -> None:
    s = sealed()
    agreement, key = admitted(s.preface(), s.order, s.worker)
    assert agreement == s.start.agreement
    assert key.public == s.start.key.public


def other_case(s: Sealed) -> Preface:
    return replace(s.preface(), case=b"another case")


def other_agreement(s: Sealed) -> Preface:
    return replace(s.preface(), agreement=start(TERMS).agreement.to_cbor())


def own_signature_twice(s: Sealed) -> Preface:
    return replace(s.preface(), verifier_assent=assent(s.order, PROVER))


def old_signature(s: Sealed) -> Preface:
    return replace(s.preface(), verifier_assent=assent(replace(s.order, commitment=os.urandom(32)), VERIFIER))


def other_worker(s: Sealed) -> Preface:
    return replace(s.preface(), prover_box=seal_secret(s.start.secrets[0], s.order, WorkerKey().public))


def old_secret(s: Sealed) -> Preface:
    """A box that was made for another order, played back."""
    earlier = replace(s.order, commitment=os.urandom(32))
    return replace(s.preface(), prover_box=s.preface(earlier).prover_box)


@pytest.mark.finding("sealed.channel")
@pytest.mark.parametrize(
    "attack", [other_case, other_agreement, own_signature_twice, old_signature, other_worker, old_secret]
)
def test_nothing_is_taken_up_that_both_did_not_sign(attack: Callable[[Sealed], Preface]) -> None:
    s = sealed()
    with pytest.raises(SealedInputError):
        admitted(attack(s), s.order, s.worker)


@pytest.mark.finding("sealed.channel")
@pytest.mark.parametrize("field", ["verifier_nonce", "prover_nonce"])
def test_nonces_are_the_shares(field: str) -> None:
    s = sealed()
    s.order = replace(s.order, **{field: os.urandom(32)})
    with pytest.raises(SealedInputError):
        admitted(s.preface(), s.order, s.worker)


@pytest.mark.finding("sealed.channel")
def test_the_outcome_leaves_when_it_was_agreed() -> None:
    s = sealed()
    assert s.order.session is not None
    s.order = replace(s.order, session=replace(s.order.session, leaves_after_s=1))
    with pytest.raises(SealedInputError):
        admitted(s.preface(), s.order, s.worker)


@pytest.mark.finding("outcome.agreement")
def test_a_party_gives_the_secret_that_it_is_committed_to() -> None:
    s = sealed()
    changed = replace(s.preface(), verifier_box=seal_secret(os.urandom(32), s.order, s.worker.public))
    with pytest.raises(OutcomeError):
        admitted(changed, s.order, s.worker)


def test_a_worker_states_its_key_for_this_order() -> None:
    s, signer = sealed(), WorkerSigner()
    public = signer.public
    statement = state_key(s.start.key.public, s.order, signer)
    assert stated_key(statement, s.order, public) == s.start.key.public
    for data, order, key in (
        (statement[:-1], s.order, public),
        (bytes(32) + statement[32:], s.order, public),
        (statement, replace(s.order, commitment=os.urandom(32)), public),
        (statement, s.order, WorkerSigner().public),
    ):
        with pytest.raises(SealedInputError):
            stated_key(data, order, key)


def test_a_secret_has_its_length() -> None:
    s = sealed()
    with pytest.raises(UsageError):
        seal_secret(b"short", s.order, s.worker.public)


def test_a_key_that_received_a_stream_opens_nothing_more(tmp_path: object) -> None:
    s = sealed()
    box = seal_secret(bytes(32), s.order, s.worker.public)
    with pytest.raises(SealedInputError):
        s.worker.receive(io.BytesIO(), s.order.terms(s.worker.public), tmp_path / "files", limit=1)  # type: ignore[operator]
    with pytest.raises(UsageError):
        s.worker.open(box)


@pytest.mark.finding("sealed.channel")
def test_no_part_is_made_elsewhere_where_the_terms_draw_the_machine() -> None:
    """Neither party's command makes or signs such an order, and a worker refuses one that both signed all the same."""
    parts = Parts(count=2, authority=bytes(32))
    begun = start(replace(TERMS, machines=bytes(32)))
    with pytest.raises(UsageError, match="no part"):
        session_of(begun.agreement, CASE, parts)
    session = replace(session_of(begun.agreement, CASE), parts=parts)
    order = sealed_order(
        steps=None, session=session, verifier_nonce=begun.agreement.verifier_opened.share,
        prover_nonce=begun.agreement.prover_opened.share,
    )  # fmt: skip
    s = Sealed(begun, order, WorkerKey())
    with pytest.raises(SealedInputError, match="parts"):
        admitted(s.preface(), s.order, s.worker)
    whole = Sealed(begun, replace(order, session=replace(session, parts=None)), WorkerKey())
    admitted(whole.preface(), whole.order, whole.worker)


def test_both_parties_are_admitted_to_an_order_with_parts() -> None:
    s = sealed()
    divided = session_of(s.start.agreement, CASE, Parts(count=2, authority=bytes(32)))
    s = Sealed(s.start, replace(s.order, session=divided), s.worker)
    assert admitted(s.preface(), s.order, s.worker)[0] == s.start.agreement
