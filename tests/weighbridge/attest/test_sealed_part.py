"""What a session's worker takes of its parts, and what else is tried to have it taken."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st
from support.sealed_orders import sealed_order
from support.worker_evidence import IMAGE, START, Site, session_order

from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.sealed_attestation import Launcher
from weighbridge.attest.sealed_channel import SealedInputError, WorkerKey
from weighbridge.attest.sealed_order import MOST_PARTS, Order, Part, Parts, Session
from weighbridge.attest.sealed_outcome import OUTCOME_LIMIT, seal
from weighbridge.attest.sealed_part import SMALLEST, PartBox, PartPreface, PartResults, SealedParts, part_order
from weighbridge.attest.sealed_session import case_digest
from weighbridge.attest.worker_signer import WorkerSigner
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import FormatError, WeighbridgeError

CASE = b"a case"
RESULTS = PartResults(memory=1 << 30, seconds=60, replays={bytes([n]) * 32: b"found" * n for n in range(3)})
BOXES = st.lists(
    st.builds(PartBox, st.integers(1, MOST_PARTS), st.binary(max_size=9), st.binary(max_size=9)),
    max_size=4, unique_by=lambda each: each.number,
)  # fmt: skip
REPLAYS = st.dictionaries(st.binary(min_size=32, max_size=32), st.binary(max_size=40), max_size=5)


def der(maker: CertificateAuthority) -> bytes:
    return maker.certificate.public_bytes(Encoding.DER)


def divided(maker: CertificateAuthority, **changed: Any) -> Order:
    parts = Parts(count=2, authority=bytes_digest(der(maker)))
    session = Session(case=case_digest(CASE), agreement=bytes(32), leaves_after_s=60, parts=parts)
    return session_order(session=session, **changed)


@dataclass
class Aggregating:
    """A session's worker, and a launcher of the authority in its order."""

    maker: CertificateAuthority = field(default_factory=lambda: CertificateAuthority.create("Both sides' authority"))
    key: WorkerKey = field(default_factory=WorkerKey)

    def __post_init__(self) -> None:
        self.order = divided(self.maker)
        self.launcher = Launcher.issue(self.maker, b"\x07" * 17)

    def part(self, number: int = 1, **changed: Any) -> Order:
        return replace(part_order(self.order, self.key.public, number), **changed)

    def box(
        self,
        order: Order,
        *,
        launcher: Launcher | None = None,
        number: int | None = None,
        attested: Order | None = None,
    ) -> PartBox:
        """What an honest worker of an order hands over; `attested` is another order that its launcher vouches for."""
        signer = WorkerSigner()
        attestation = (launcher or self.launcher).quote(
            attested or order, START, measurement=order.measurement, worker=WorkerKey().public, signer=signer.public,
            isolation=["memory"],
        )  # fmt: skip
        named = number or (0 if order.part is None else order.part.number)
        return PartBox(named, attestation, seal(RESULTS.to_bytes(), order, signer))

    def opened(self, *boxes: PartBox) -> dict[int, PartResults | WeighbridgeError]:
        stream = io.BytesIO()
        SealedParts.of(der(self.maker), boxes).send(stream)
        return SealedParts.receive(io.BytesIO(stream.getvalue())).opened(self.order, self.key)


def test_results_of_parts_are_taken() -> None:
    here = Aggregating()
    assert here.opened(*(here.box(here.part(number)) for number in (2, 1))) == {1: RESULTS, 2: RESULTS}
    assert here.opened() == {}


def test_a_part_has_one_order() -> None:
    """It differs by session, worker and number alone, and has the session's files, Prover and image."""
    here = Aggregating()
    part = here.part()
    kept = ("commitment", "prover", "measurement")
    assert [getattr(part, name) for name in kept] == [getattr(here.order, name) for name in kept]
    assert (part.aggregator, part.part) == (here.key.public, Part(session=here.order.digest, number=1))
    others = [
        here.part(2),
        part_order(here.order, os.urandom(32), 1),
        part_order(divided(here.maker), os.urandom(32), 1),
    ]
    nonces = {each for order in (part, *others) for each in (order.verifier_nonce, order.prover_nonce)}
    assert len(nonces) == 8
    assert Order.from_cbor(part.to_cbor()) == part
    for number in (0, 3):
        with pytest.raises(FormatError):
            part_order(here.order, here.key.public, number)
    with pytest.raises(FormatError):
        part_order(session_order(), here.key.public, 1)


def of_another_session(here: Aggregating) -> PartBox:
    return here.box(part_order(divided(here.maker), here.key.public, 1))


def played_back(here: Aggregating) -> PartBox:
    """An earlier start of the same order had another worker; its parts were encrypted to that."""
    return here.box(part_order(here.order, WorkerKey().public, 1))


def to_another_worker(here: Aggregating) -> PartBox:
    """It is vouched for as it should be, but what the launcher vouches for was encrypted to another key."""
    return here.box(part_order(here.order, WorkerKey().public, 1), attested=here.part())


def of_another_image(here: Aggregating) -> PartBox:
    return here.box(here.part(measurement=b"j" * 48))


def another_image_that_says_it_is_this_one(here: Aggregating) -> PartBox:
    """A launcher certifies the measurement that it started, whatever the order says."""
    honest, signer = here.part(), WorkerSigner()
    attestation = here.launcher.quote(
        honest, START, measurement=b"j" * 48, worker=WorkerKey().public, signer=signer.public, isolation=["memory"]
    )
    return PartBox(1, attestation, seal(RESULTS.to_bytes(), honest, signer))


def of_another_authority(here: Aggregating) -> PartBox:
    return here.box(here.part(), launcher=Launcher.issue(CertificateAuthority.create("Another"), b"\x07" * 17))


def of_a_worker_without_a_launcher(here: Aggregating) -> PartBox:
    """A Prover that makes up results: it has every public value, and an attestation of a real worker."""
    real, own = here.box(here.part()), WorkerSigner()
    return replace(real, box=seal(RESULTS.to_bytes(), here.part(), own))


def the_other_part_again(here: Aggregating) -> PartBox:
    return here.box(here.part(2), number=1)


def of_other_files(here: Aggregating) -> PartBox:
    return here.box(here.part(commitment=os.urandom(32)))


def of_no_part(here: Aggregating) -> PartBox:
    """The outcome of a single replay that is encrypted to the session's worker."""
    return here.box(here.part(part=None, steps=(0, 1)), number=1)


def of_a_part_that_the_order_has_not(here: Aggregating) -> PartBox:
    return here.box(here.part(part=Part(session=here.order.digest, number=3)))


def altered(here: Aggregating) -> PartBox:
    box = here.box(here.part())
    return replace(box, box=box.box[:-1] + bytes([box.box[-1] ^ 1]))


def cut(here: Aggregating) -> PartBox:
    return replace(here.box(here.part()), box=b"short")


def an_altered_attestation(here: Aggregating) -> PartBox:
    box = here.box(here.part())
    return replace(box, attestation=box.attestation[:-1] + bytes([box.attestation[-1] ^ 1]))


@pytest.mark.finding("sealed.attestation")
@pytest.mark.finding("sealed.outcome")
@pytest.mark.parametrize(
    "attack",
    [
        of_another_session, played_back, to_another_worker, of_another_image, another_image_that_says_it_is_this_one,
        of_another_authority, of_a_worker_without_a_launcher, the_other_part_again, of_other_files, of_no_part,
        of_a_part_that_the_order_has_not, altered, cut, an_altered_attestation,
    ],
)  # fmt: skip
def test_nothing_else_is_taken_and_the_other_parts_are(attack: Callable[[Aggregating], PartBox]) -> None:
    here = Aggregating()
    wrong = attack(here)
    found = here.opened(wrong, here.box(here.part(2)))
    assert isinstance(found.pop(wrong.number), WeighbridgeError)
    assert found == {2: RESULTS}


def test_no_part_is_taken_twice() -> None:
    here = Aggregating()
    with pytest.raises(FormatError):
        here.opened(here.box(here.part()), here.box(here.part()))


@pytest.mark.finding("sealed.channel")
def test_the_authority_is_the_one_that_both_signed() -> None:
    """A Prover that sends another authority's certificate, and a worker that this one vouches for, gets nothing."""
    here, other = Aggregating(), CertificateAuthority.create("Another")
    box = here.box(here.part(), launcher=Launcher.issue(other, b"\x07" * 17))
    for root, order in ((der(other), here.order), (b"", here.order), (der(here.maker), session_order())):
        with pytest.raises(SealedInputError):
            SealedParts.of(root, [box]).opened(order, here.key)


@pytest.mark.finding("sealed.channel")
@pytest.mark.parametrize("data", [b"", b"\x00" * 4, b"\xff" * 4, b"\x00\x00\x00\x09only"])
def test_parts_have_no_other_length(data: bytes) -> None:
    with pytest.raises(SealedInputError):
        SealedParts.receive(io.BytesIO(data))


def test_a_worker_of_a_part_takes_its_own_session_alone() -> None:
    here = Aggregating()
    stream = io.BytesIO()
    PartPreface(order=here.order.to_cbor(), case=CASE).send(stream)
    preface = PartPreface.receive(io.BytesIO(stream.getvalue()))
    session = here.order.session
    assert session is not None
    assert preface.of_part(here.part()) == session.parts
    wrong = [
        (replace(preface, case=b"another"), here.part()),
        (replace(preface, order=divided(here.maker).to_cbor()), here.part()),
        (replace(preface, order=session_order().to_cbor()), here.part()),
        (preface, here.part(commitment=os.urandom(32))),
        (preface, here.part(prover_nonce=os.urandom(32))),  # a nonce that was not spent
        (preface, here.part(aggregator=os.urandom(32))),
        (preface, here.part(part=Part(session=here.order.digest, number=2))),
        (preface, here.part(part=None)),
    ]
    for each, order in wrong:
        with pytest.raises(SealedInputError):
            each.of_part(order)


def test_chips_open_nothing_to_a_part() -> None:
    """What chips encrypt goes to the session's worker, which makes these replays itself."""
    here, site = Aggregating(), Site()
    part = replace(here.part(), measurement=IMAGE)
    with pytest.raises(WeighbridgeError, match="no sealed inspection"):
        site.trusted.check(*site.evidence(part))


def test_the_length_of_results_says_little() -> None:
    def box(*sizes: int) -> int:
        replays = {bytes([n]) * 32: bytes(size) for n, size in enumerate(sizes)}
        return len(PartResults(memory=1, seconds=1, replays=replays).to_bytes())

    assert {box(), box(0), box(5, 5), box(60_000)} == {SMALLEST}
    assert {box(70_000), box(50_000, 50_000), box(130_000)} == {2 * SMALLEST}


def test_what_there_is_no_room_for_is_left_out() -> None:
    replays = {bytes([n]) * 32: bytes(OUTCOME_LIMIT // 2 - 100_000 * n) for n in range(3)} | {b"s" * 32: b"small"}
    data = PartResults(memory=1, seconds=1, replays=replays).to_bytes()
    assert len(data) <= OUTCOME_LIMIT
    assert PartResults.from_bytes(data).replays.keys() == {b"s" * 32, b"\x02" * 32, b"\x01" * 32}


@given(REPLAYS, st.integers(1, 1 << 53), st.integers(1, 1 << 53))
def test_results_come_back(replays: dict[bytes, bytes], memory: int, seconds: int) -> None:
    """Law: from_bytes(r.to_bytes()) == r."""
    made = PartResults(memory=memory, seconds=seconds, replays=replays)
    assert PartResults.from_bytes(made.to_bytes()) == made


@given(REPLAYS, st.integers(0, 300), st.integers(0, 255), st.integers(0))
def test_bytes_are_results_or_refused(replays: dict[bytes, bytes], at: int, value: int, cut: int) -> None:
    """Law: from_bytes(data).to_bytes() == data, or data is refused."""
    whole = PartResults(memory=9, seconds=9, replays=replays).to_bytes()
    data = bytearray(whole)
    data[at] = value
    for each in (bytes(data), whole[: cut % len(whole)], whole + b"\x00"):
        with suppress(FormatError):
            assert PartResults.from_bytes(each).to_bytes() == each


def test_other_forms_are_no_results() -> None:
    good = [1, 1, [[bytes(32), b""]]]
    others = [[1, 1], [True, 1, []], [0, 1, []], [1, 1 << 60, []], [1, 1, [[bytes(31), b""]]], [1, 1, [[bytes(32)]]], 1]
    others += [[1, 1, [[bytes(32), b""]] * 2], [1, 1, [[b"\x01" * 32, b""], [bytes(32), b""]]]]

    def filled(value: object, more: bytes = b"") -> bytes:
        content = cbor(value)
        return (len(content).to_bytes(8) + content + more).ljust(SMALLEST, b"\x00")

    PartResults.from_bytes(filled(good))
    for each in [*map(filled, others), filled(good, b"\x01"), filled(good) * 2, bytes(SMALLEST)]:
        with pytest.raises(FormatError):
            PartResults.from_bytes(each)


@given(st.binary(max_size=9), BOXES)
def test_parts_come_back(root: bytes, boxes: list[PartBox]) -> None:
    """Law: from_cbor(p.to_cbor()) == p."""
    made = SealedParts.of(root, boxes)
    assert SealedParts.from_cbor(made.to_cbor()) == made


@given(BOXES, st.integers(0), st.integers(0, 255), st.integers(0))
def test_bytes_are_parts_or_refused(boxes: list[PartBox], at: int, value: int, cut: int) -> None:
    """Law: from_cbor(data).to_cbor() == data, or data is refused."""
    whole = SealedParts.of(b"root", boxes).to_cbor()
    data = bytearray(whole)
    data[at % len(data)] = value
    for each in (bytes(data), whole[: cut % len(whole)], whole + b"\x00"):
        with suppress(FormatError):
            assert SealedParts.from_cbor(each).to_cbor() == each


@given(st.integers(1, MOST_PARTS), st.binary(min_size=32, max_size=32))
def test_orders_of_parts_and_of_their_sessions_come_back(number: int, digest: bytes) -> None:
    part = sealed_order(steps=None, part=Part(session=digest, number=number))
    parts = Parts(count=number, authority=digest)
    session = Session(case=bytes(32), agreement=bytes(32), leaves_after_s=1, parts=parts)
    whole, single = sealed_order(steps=None, session=session), replace(session, parts=None)
    for each in (part, whole):
        assert Order.from_cbor(each.to_cbor()) == each
    assert len({each.digest for each in (whole, replace(whole, session=single), replace(whole, session=None))}) == 3


def test_other_orders_are_of_no_part() -> None:
    for wrong in ((bytes(31), 1), (bytes(32), 0), (bytes(32), MOST_PARTS + 1), (bytes(32), True), ("x" * 32, 1)):
        for kind in (lambda a, b: Part(session=a, number=b), lambda a, b: Parts(authority=a, count=b)):
            with pytest.raises(FormatError):
                kind(*wrong)
    part = Part(session=bytes(32), number=1)
    for more in ({"steps": (0, 1)}, {"session": Session(case=bytes(32), agreement=bytes(32), leaves_after_s=1)}):
        with pytest.raises(FormatError):
            sealed_order(**{"steps": None, "part": part, **more})
