"""What parties to a sealed dispute sign, and the ruling that leaves: strict encodings, and refused forgeries."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey as Signer
from support.sealed_disputes import COURT, SITE

from weighbridge.attest import sealed_starts
from weighbridge.attest.disclosure import DisclosureBook
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.manifest import SigningKey
from weighbridge.attest.outcome_terms import OutcomeError
from weighbridge.attest.sealed_attestation import Launcher
from weighbridge.attest.sealed_channel import SealedInputError, WorkerKey
from weighbridge.attest.sealed_dispute import (
    PARTIES,
    Admission,
    DisputeTerms,
    SealedDisputeError,
    Seat,
    admitted,
    order_of,
)
from weighbridge.attest.sealed_list import SealedFile, SealedList
from weighbridge.attest.sealed_order import Order, SealedWorkerError
from weighbridge.attest.sealed_ruling import (
    CLASSES,
    RULING_SIZE,
    STATUSES,
    VERDICTS,
    SealedDispute,
    SealedRuling,
    bits,
    is_sealed,
    ledger,
    opened,
    sign,
    start_of,
)
from weighbridge.core.errors import FormatError, UsageError, WeighbridgeError

FILES = SealedList(bytes(32), (SealedFile("claim", 1, bytes(32)),))
OTHERS = SealedList(bytes([1]) * 32, (SealedFile("claim", 1, bytes(32)),))
SEATS = (COURT.seat(0, FILES), COURT.seat(1, OTHERS))
ADMISSION = COURT.admission(*SEATS)
ORDER = ADMISSION.order()
CHANGES: dict[str, Any] = {
    "dispute": "a b", "attempt": 256, "challenger": bytes(31), "subject": b"", "measurement": bytes(32),
    "site": bytes(16), "clock_s": 0, "leaves_after_s": 179, "shows_class": 1, "year_bits": -1, "inputs": 0,
    "memory": 1 << 60, "run_s": 61, "challenger_signer": b"", "defender_signer": bytes(33),
}  # fmt: skip


def test_terms_seats_and_orders_come_back() -> None:
    assert DisputeTerms.from_cbor(COURT.terms.to_cbor()) == COURT.terms
    assert [Seat.from_cbor(each.to_cbor(), COURT.terms) for each in SEATS] == [*SEATS]
    assert Order.from_cbor(ORDER.to_cbor()) == ORDER
    assert admitted(ADMISSION, ORDER) == COURT.terms
    assert (ORDER.verifier_nonce, ORDER.prover_nonce) == (SEATS[0].nonce, SEATS[1].nonce)


@pytest.mark.parametrize("name", CHANGES)
def test_terms_with_a_field_of_another_kind_are_none(name: str) -> None:
    with pytest.raises(SealedDisputeError):
        replace(COURT.terms, **{name: CHANGES[name]})


def test_a_party_is_not_its_own_other() -> None:
    with pytest.raises(SealedDisputeError):
        replace(COURT.terms, defender=COURT.terms.challenger)
    with pytest.raises(UsageError):
        Seat.take(COURT.terms, SigningKey.generate(), nonce=bytes(32), key=bytes(32), commitment=bytes(32))


def test_what_is_not_signed_by_both_for_these_terms_is_refused() -> None:
    """A seat for other terms, of the other party, with another commitment; and one order in place of another."""
    others = replace(COURT.terms, clock_s=29)
    for seat, terms in (
        (SEATS[0], others),
        (replace(SEATS[0], commitment=os.urandom(32)), COURT.terms),
        (replace(SEATS[0], party="defender"), COURT.terms),
        (replace(SEATS[0], signature=bytes(64)), COURT.terms),
    ):
        with pytest.raises(SealedDisputeError):
            Seat.from_cbor(seat.to_cbor(), terms)
    with pytest.raises(SealedDisputeError):
        Admission(terms=ADMISSION.terms, challenger=ADMISSION.defender, defender=ADMISSION.challenger).order()
    again = COURT.admission(COURT.seat(0, FILES), SEATS[1])
    with pytest.raises(SealedInputError):
        admitted(again, ORDER)
    with pytest.raises(SealedInputError):
        admitted(ADMISSION, again.order())


def test_an_order_of_a_dispute_is_no_other_job() -> None:
    with pytest.raises(FormatError):
        replace(ORDER, steps=(0, 1))
    with pytest.raises(FormatError):
        replace(ORDER, aggregator=bytes([1]) * 32)
    with pytest.raises(FormatError):
        replace(ORDER, referee=None).challenger_terms(bytes(32))


def test_a_seat_is_of_one_start_of_one_dispute() -> None:
    """One that was taken for another dispute, another attempt or within other limits buys nothing here."""
    for changed in ({"dispute": "gpt3"}, {"attempt": 1}, {"memory": 1 << 29}, {"defender_signer": bytes(32)}):
        other = replace(COURT.terms, **changed)  # type: ignore[arg-type]
        played_back = Admission(terms=other.to_cbor(), challenger=ADMISSION.challenger, defender=ADMISSION.defender)
        with pytest.raises(SealedDisputeError, match="did not sign"):
            played_back.order()


def test_one_party_does_not_take_both_seats() -> None:
    """It can sign none for the other one, and where it holds both keys, the seats are two all the same."""
    mine = COURT.seat(0, FILES)
    forged = replace(mine, party="defender")
    with pytest.raises(SealedDisputeError, match="did not sign"):
        COURT.admission(mine, forged).order()
    with pytest.raises(SealedDisputeError, match="one of its defender"):
        order_of(COURT.terms, mine, mine)


@pytest.mark.parametrize("copied", ["nonce", "key", "commitment"])
def test_a_seat_that_mirrors_the_other_one_is_refused(copied: str) -> None:
    """Its party would have the site give the worker the other party's files once more, as its own."""
    theirs = COURT.seat(0, FILES)
    own = {"nonce": os.urandom(32), "key": os.urandom(32), "commitment": os.urandom(32)}
    mirror = Seat.take(COURT.terms, COURT.signing[1], **own | {copied: getattr(theirs, copied)})
    with pytest.raises(SealedDisputeError, match="repeats"):
        COURT.admission(theirs, mirror).order()


def ruling(**changed: Any) -> SealedRuling:
    made = SealedRuling(order=ORDER.digest, status="complete", challenger="admissible", defender="false")
    return replace(made, **changed)


@given(
    st.sampled_from(STATUSES), st.sampled_from(VERDICTS), st.sampled_from(VERDICTS), st.sampled_from(CLASSES),
    st.binary(min_size=32, max_size=32),
)  # fmt: skip
def test_a_ruling_comes_back_and_has_one_size(status: Any, one: Any, other: Any, kind: str, order: bytes) -> None:
    try:
        made = SealedRuling(order=order, status=status, challenger=one, defender=other, operation=kind)
    except SealedDisputeError:
        assert (status == "complete") == (one == other == "none") or (status != "complete" and kind != "none")
        return
    assert SealedRuling.from_bytes(made.to_bytes()) == made
    assert len(sign(made, Signer.generate())) == RULING_SIZE


@given(st.binary(max_size=200), st.integers(0, 36), st.integers(0, 255))
def test_garbage_is_no_ruling(garbage: bytes, at: int, byte: int) -> None:
    good = bytearray(ruling().to_bytes())
    good[at] = byte
    for data in (garbage, bytes(good), bytes(good[:at])):
        try:
            found = SealedRuling.from_bytes(data)
        except SealedDisputeError:
            continue
        assert found.to_bytes() == data


@given(st.binary(max_size=300), st.integers(0, 1 << 12), st.binary(min_size=1, max_size=1))
def test_garbage_is_neither_terms_nor_a_seat_nor_a_file(garbage: bytes, at: int, byte: bytes) -> None:
    file = SealedDispute(admission=ADMISSION, attestation=b"a", ruling=b"r").to_cbor()
    readers = (
        (ADMISSION.terms, lambda data: DisputeTerms.from_cbor(data).to_cbor()),
        (ADMISSION.challenger, lambda data: Seat.from_cbor(data, COURT.terms).to_cbor()),
        (file, lambda data: SealedDispute.from_cbor(data).to_cbor()),
        (ORDER.to_cbor(), lambda data: Order.from_cbor(data).to_cbor()),
    )
    for good, again in readers:
        place = at % len(good)
        for hostile in (garbage, good[:place], good[:place] + byte + good[place + 1 :]):
            try:
                assert again(hostile) == hostile
            except WeighbridgeError:
                continue
    assert is_sealed(file)


def test_the_ledger_has_every_byte_and_the_bits_of_all_rulings() -> None:
    shown = replace(COURT.terms, shows_class=True)
    for terms, most in ((COURT.terms, 5), (shown, 9)):
        rows = ledger(terms)
        assert sum(row.length for row in rows) == RULING_SIZE
        assert bits(terms) == most <= sum(row.bits for row in rows) + 1
    assert {row.field for row in ledger(COURT.terms) if row.bits} == {"status", "challenger", "defender"}


@pytest.mark.finding("outcome.budget")
def test_a_book_charges_disputes_beside_inspections(tmp_path: Path) -> None:
    book = DisclosureBook(tmp_path / "book", inspection_bits=1 << 20, year_bits=12)
    assert book.charge_start(start_of(COURT.terms), 1) == 7
    with pytest.raises(OutcomeError, match="1 starts of dispute"):
        book.charge_start(start_of(COURT.terms), 2)
    assert book.charge_start(start_of(replace(COURT.terms, attempt=1)), 3) == 2
    with pytest.raises(OutcomeError, match="of the year's 12 are spent"):
        book.charge_start(start_of(replace(COURT.terms, dispute="other")), 4)


# -- what a reader of a finished dispute refuses -----------------------------------------------------------------------


class Site:
    """A launcher that vouches for workers, and for what they are started with."""

    def __init__(self, root: Path, ueid: bytes = SITE) -> None:
        self.maker = CertificateAuthority.create("Both sides' authority")
        self._launcher, self._log = Launcher.issue(self.maker, ueid), root / "starts"

    def attested(self, order: Order, signer: Signer, measurement: bytes = bytes(48)) -> bytes:
        start = sealed_starts.append(self._log, order)
        return self._launcher.quote(
            order, start, measurement=measurement, worker=WorkerKey().public, signer=bytes(signer.verify_key),
            isolation=["no-network"],
        )  # fmt: skip


@pytest.mark.finding("dispute.sealed")
def test_a_reader_takes_a_ruling_of_this_worker_for_this_order_alone(tmp_path: Path) -> None:
    site, signer = Site(tmp_path), Signer.generate()
    attestation = site.attested(ORDER, signer)
    good = SealedDispute(admission=ADMISSION, attestation=attestation, ruling=sign(ruling(), signer))
    terms, found, attested = good.verified(site.maker.certificate)
    assert (terms, found.defender, attested.launcher) == (COURT.terms, "false", SITE)
    later = COURT.admission(COURT.seat(0, FILES), COURT.seat(1, OTHERS))
    second = site.attested(later.order(), signer)
    turned = bytearray(good.ruling)
    turned[34], turned[35] = turned[35], turned[34]
    for forgery in (
        replace(good, ruling=sign(ruling(order=later.order().digest), signer)),
        replace(good, ruling=bytes(turned)),
        replace(good, ruling=sign(ruling(), Signer.generate())),
        replace(good, ruling=sign(ruling(operation="product"), signer)),
        replace(good, admission=later, attestation=second),
        replace(good, ruling=good.ruling + b"\x00"),
    ):
        with pytest.raises(SealedDisputeError):
            forgery.verified(site.maker.certificate)
    for forgery, root in (
        (replace(good, admission=later), site.maker),
        (replace(good, attestation=second), site.maker),
        (good, CertificateAuthority.create("Another authority")),
    ):
        with pytest.raises(SealedWorkerError):
            forgery.verified(root.certificate)


def test_another_site_or_image_is_refused(tmp_path: Path) -> None:
    elsewhere, signer = Site(tmp_path, b"\x02" * 17), Signer.generate()
    file = SealedDispute(
        admission=ADMISSION, attestation=elsewhere.attested(ORDER, signer), ruling=sign(ruling(), signer)
    )
    with pytest.raises(SealedDisputeError, match="another site"):
        file.verified(elsewhere.maker.certificate)
    (tmp_path / "other").mkdir()
    site = Site(tmp_path / "other")
    image = replace(file, attestation=site.attested(ORDER, signer, measurement=b"\x01" * 48))
    with pytest.raises(SealedWorkerError, match="another image"):
        image.verified(site.maker.certificate)


def test_parties_of_a_dispute_have_these_names() -> None:
    assert PARTIES == ("challenger", "defender")
    with pytest.raises(SealedDisputeError):
        opened(b"", ORDER, bytes(32))
