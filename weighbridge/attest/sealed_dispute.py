"""What both parties agree on before a sealed worker judges their dispute, and what the worker hears of it first.

*Terms* say who disputes with whom, before which machine and image, how long each has, and what may leave. Each party
takes a *seat*: a nonce, its key of the channel and the commitment to its files, signed over the terms. Both seats and
the terms make the order. So a worker takes up nothing that both did not sign, and a party that took a seat and then
falls silent has forfeited: nothing else is needed of it for that.

Which step of which transcripts is disputed is a secret of the two parties (`weighbridge.attest.sealed_subject`). The
terms have a commitment to it, and both parties give the worker what opens it. Whose keys signed these transcripts is
none: the terms name them. So a ruling is about transcripts that both parties agreed on, and about no other run.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, fields
from typing import Any, BinaryIO, Literal

from weighbridge.attest.manifest import SigningKey
from weighbridge.attest.outcome_agreement import signed_by
from weighbridge.attest.sealed_channel import SealedInputError, exactly
from weighbridge.attest.sealed_order import NO_KEY, Order, Referee
from weighbridge.attest.tcb import MEASUREMENT_SIZE
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor, record_digest
from weighbridge.core.errors import FormatError, UsageError, WeighbridgeError

FORMAT = 1
TERMS_LIMIT, SEAT_LIMIT = 4096, 512
"""So many bytes terms and a seat may have."""
SLACK_S = 30
"""So many seconds are left to the end of the ruling, beside the time of both parties and their runs."""

Party = Literal["challenger", "defender"]
PARTIES: tuple[Party, Party] = ("challenger", "defender")

_NAME = re.compile(r"[0-9a-zA-Z_-]{1,64}")
_SEAT = b"weighbridge/sealed-seat/1\x00"
_MOST_SECONDS, _MOST_BITS, _MOST_ATTEMPT, _MOST_BYTES = 1 << 31, 1 << 40, 255, 1 << 48
_LENGTH = struct.Struct(">I")
_LANE = struct.Struct(">BI")
LANE_PIECE = 1 << 17
"""So many bytes of a party's stream stand in one frame at most."""


class SealedDisputeError(WeighbridgeError):
    """What was agreed on about a sealed dispute is malformed, altered, or signed by another party."""

    code = "dispute.sealed"


@dataclass(frozen=True, kw_only=True, slots=True)
class DisputeTerms:
    """What both parties agree on about one sealed dispute.

    Attributes:
        dispute: What it is called, in both parties' books.
        attempt: How many starts of this dispute came before, 0 to 255.
        challenger: The key that signs for the challenger (raw Ed25519).
        defender: The key that signs for the defender.
        challenger_signer: The key that signed the transcript that the challenger stands by: its own, or the defender's
            if it has a copy of that.
        defender_signer: The key that signed the transcript that the defender stands by.
        subject: Commitment to the step and the transcripts that are disputed (`sealed_subject.Subject`).
        measurement: Of the image that is to judge (48 bytes).
        site: UEID of the launcher that is to start it (17 to 33 bytes).
        clock_s: Seconds after the attestation within which each party has to have given its files.
        inputs: So many bytes each party's files may have.
        memory: So many bytes the storages of each party's steps may have while the worker executes them.
        run_s: Seconds that the worker spends on each party's run and claim.
        leaves_after_s: Seconds after the attestation at which the ruling leaves, however early it is ready.
        shows_class: Whether the ruling has the class of the operation that was judged.
        dispute_bits: So many bits all starts of this dispute may disclose.
        year_bits: So many bits all starts of a year may disclose.
    """

    dispute: str
    attempt: int
    challenger: bytes
    defender: bytes
    challenger_signer: bytes
    defender_signer: bytes
    subject: bytes
    measurement: bytes
    site: bytes
    clock_s: int
    inputs: int
    memory: int
    run_s: int
    leaves_after_s: int
    shows_class: bool
    dispute_bits: int
    year_bits: int

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            SealedDisputeError: A field is none of its kind.
        """
        name: Any = self.dispute
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SealedDisputeError("the terms of a dispute have no name of up to 64 letters, digits, _ and -")
        keys = (self.challenger, self.defender, self.challenger_signer, self.defender_signer, self.subject)
        sizes = (*((each, 32) for each in keys), (self.measurement, MEASUREMENT_SIZE))
        if any(type(each) is not bytes or len(each) != size for each, size in sizes):
            raise SealedDisputeError("keys, subject or image of a dispute's terms have not the size that they have")
        if type(self.site) is not bytes or not 17 <= len(self.site) <= 33:
            raise SealedDisputeError("the terms of a dispute name their site by a UEID of 17 to 33 bytes")
        if self.challenger == self.defender:
            raise SealedDisputeError("the parties to a dispute are two; name another key for one of them")
        for number, least, most in (
            (self.attempt, 0, _MOST_ATTEMPT),
            (self.clock_s, 1, _MOST_SECONDS),
            (self.inputs, 1, _MOST_BYTES),
            (self.memory, 1, _MOST_BYTES),
            (self.run_s, 1, _MOST_SECONDS),
            (self.leaves_after_s, 1, _MOST_SECONDS),
            (self.dispute_bits, 0, _MOST_BITS),
            (self.year_bits, 0, _MOST_BITS),
        ):
            if type(number) is not int or not least <= number <= most:
                raise SealedDisputeError("a number in the terms of a dispute is out of its range")
        if self.leaves_after_s < (least := self.clock_s + len(PARTIES) * self.run_s + SLACK_S):
            raise SealedDisputeError(
                f"the ruling of a dispute leaves once both runs had their time: after {least} s at the earliest"
            )
        if type(self.shows_class) is not bool:
            raise SealedDisputeError("the terms of a dispute say whether the class of the operation is shown")

    @property
    def digest(self) -> bytes:
        """What seats and the order are bound to (32 bytes)."""
        return record_digest("sealed-dispute/1", self.to_cbor())

    def signer_of(self, party: Party) -> bytes:
        """Returns the public key that signed the transcript that a party stands by."""
        return self.challenger_signer if party == "challenger" else self.defender_signer

    def key_of(self, party: Party) -> bytes:
        """Returns the public key that signs for a party."""
        return self.challenger if party == "challenger" else self.defender

    def to_cbor(self) -> bytes:
        """Returns the one encoding of these terms."""
        return cbor({"format": FORMAT, **{each.name: getattr(self, each.name) for each in fields(self)}})

    @classmethod
    def from_cbor(cls, data: bytes) -> DisputeTerms:
        """Reads terms.

        Law: `from_cbor(t.to_cbor()) == t`; and where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            SealedDisputeError: The bytes are not the encoding of terms.
        """
        values = _decoded(data, TERMS_LIMIT)
        names = {each.name for each in fields(cls)} | {"format"}
        if not isinstance(values, dict) or set(values) != names or values.pop("format") != FORMAT:
            raise SealedDisputeError(f"the terms of a dispute are no map of format {FORMAT}")
        terms = cls(**values)
        if terms.to_cbor() != data:
            raise SealedDisputeError("the terms of a dispute are not in their one encoding")
        return terms


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """How a party takes part in one dispute; its signature was verified.

    Attributes:
        party: Which one it is.
        nonce: Its 32 random bytes, for this start only.
        key: Its public key of the channel: the worker takes its files from no other sender.
        commitment: To the list of its files (32 bytes).
        signature: Over all that and the terms, by the party's key in them.
    """

    party: Party
    nonce: bytes
    key: bytes
    commitment: bytes
    signature: bytes

    @classmethod
    def take(cls, terms: DisputeTerms, signing: SigningKey, *, nonce: bytes, key: bytes, commitment: bytes) -> Seat:
        """Signs a seat.

        Raises:
            UsageError: The terms name another key for either party, or a field has not its size.
        """
        party = next((each for each in PARTIES if terms.key_of(each) == signing.public), None)
        if party is None:
            raise UsageError("the terms name neither party by this key; name the right key file")
        if any(len(each) != 32 for each in (nonce, key, commitment)):
            raise UsageError("nonce, key and commitment of a seat have 32 bytes each")
        said = _said(terms, party, nonce, key, commitment)
        return cls(party=party, nonce=nonce, key=key, commitment=commitment, signature=signing.sign(said))

    def to_cbor(self) -> bytes:
        """Returns the one encoding of this seat."""
        return cbor([self.party, self.nonce, self.key, self.commitment, self.signature])

    @classmethod
    def from_cbor(cls, data: bytes, terms: DisputeTerms) -> Seat:
        """Reads a seat, if its party signed it for these terms.

        Law: `from_cbor(s.to_cbor(), t) == s`; and where `from_cbor(data, t)` returns, its `to_cbor()` is `data`.

        Raises:
            SealedDisputeError: The bytes are no seat, or the party did not sign it for these terms.
        """
        match _decoded(data, SEAT_LIMIT):
            case [
                ("challenger" | "defender") as party, bytes(nonce), bytes(key), bytes(commitment), bytes(signature),
            ] if len(nonce) == len(key) == len(commitment) == 32:  # fmt: skip
                found = cls(party=party, nonce=nonce, key=key, commitment=commitment, signature=signature)
            case _:
                raise SealedDisputeError("a seat is a party's name, three times 32 bytes and a signature")
        if found.to_cbor() != data:
            raise SealedDisputeError("a seat is not in its one encoding")
        if not signed_by(terms.key_of(party), _said(terms, party, nonce, key, commitment), signature):
            raise SealedDisputeError(f"the {party} of the terms did not sign this seat for them; ask for another one")
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """What a worker hears before any party's files: the terms and both seats, which the order is made of."""

    terms: bytes
    challenger: bytes
    defender: bytes

    def send(self, sink: BinaryIO) -> None:
        """Writes all three, each after its length in four bytes.

        Raises:
            OSError: They cannot be written.
        """
        for each in (self.terms, self.challenger, self.defender):
            sink.write(_LENGTH.pack(len(each)) + each)
        sink.flush()

    @classmethod
    def receive(cls, source: BinaryIO) -> Admission:
        """Reads all three; nothing of them is parsed here.

        Raises:
            SealedInputError: One has a length that it cannot have, or does not come.
        """
        terms, challenger, defender = (_message(source, most) for most in (TERMS_LIMIT, SEAT_LIMIT, SEAT_LIMIT))
        return cls(terms=terms, challenger=challenger, defender=defender)

    def order(self) -> Order:
        """Returns the order that terms and seats make.

        Raises:
            SealedDisputeError: They are none, or not signed by their parties.
        """
        return order_of(*self.read())

    def read(self) -> tuple[DisputeTerms, Seat, Seat]:
        """Returns the terms, and the seats of challenger and defender.

        Raises:
            SealedDisputeError: They are none, or not signed by their parties.
        """
        terms = DisputeTerms.from_cbor(self.terms)
        return terms, Seat.from_cbor(self.challenger, terms), Seat.from_cbor(self.defender, terms)


def order_of(terms: DisputeTerms, challenger: Seat, defender: Seat) -> Order:
    """Returns the one order of a dispute: any party can make it, and all make the same.

    Raises:
        SealedDisputeError: Both seats are of one party, or one repeats a nonce, a key or a commitment of the other one:
            with these the site could give the worker one party's files as those of the other.
    """
    if (challenger.party, defender.party) != PARTIES:
        raise SealedDisputeError("a dispute has a seat of its challenger and one of its defender")
    one, other = ((each.nonce, each.key, each.commitment) for each in (challenger, defender))
    if any(mine == theirs for mine, theirs in zip(one, other, strict=True)):
        raise SealedDisputeError("one seat repeats a nonce, a key or a commitment of the other one; refuse it")
    return Order(
        verifier_nonce=challenger.nonce, prover_nonce=defender.nonce, commitment=defender.commitment,
        prover=defender.key, aggregator=NO_KEY, measurement=terms.measurement,
        referee=Referee(
            terms=terms.digest, challenger=challenger.key, commitment=challenger.commitment, inputs=terms.inputs,
            memory=terms.memory, leaves_after_s=terms.leaves_after_s,
        ),
    )  # fmt: skip


def admitted(admission: Admission, order: Order) -> DisputeTerms:
    """Checks what came before the parties' files: in the worker.

    Args:
        admission: As it came.
        order: What the worker was started with.

    Raises:
        SealedInputError: Terms and seats make another order, so not both parties signed this one.
        SealedDisputeError: They are none, or not signed by their parties.
    """
    terms, challenger, defender = admission.read()
    if order_of(terms, challenger, defender) != order:
        raise SealedInputError("these terms and seats are of another order")
    return terms


def lane_frame(party: int, piece: bytes) -> bytes:
    """Returns a piece of a party's stream as it is carried to the worker beside the other party's.

    Args:
        party: 0 for the challenger, 1 for the defender.
        piece: At most `LANE_PIECE` bytes.
    """
    return _LANE.pack(party, len(piece)) + piece


def read_lane_frame(source: BinaryIO) -> tuple[int, bytes]:
    """Returns the party and the piece of the next frame.

    Raises:
        SealedInputError: There is none, or it is malformed.
    """
    party, length = _LANE.unpack(exactly(source, _LANE.size))
    if party not in (0, 1) or not 0 < length <= LANE_PIECE:
        raise SealedInputError("a piece of a party's stream is of no party, or has a length that none has")
    return party, exactly(source, length)


def _said(terms: DisputeTerms, party: Party, nonce: bytes, key: bytes, commitment: bytes) -> bytes:
    return _SEAT + record_digest("sealed-seat/1", [terms.digest, party, nonce, key, commitment])


def _decoded(data: bytes, limit: int) -> Any:
    try:
        return decode_cbor(data, max_depth=2, max_items=64) if len(data) <= limit else None
    except FormatError:
        return None


def _message(source: BinaryIO, limit: int) -> bytes:
    (length,) = _LENGTH.unpack(exactly(source, _LENGTH.size))
    if not 0 < length <= limit:
        raise SealedInputError("a message before the parties' files has a length that none has")
    return exactly(source, length)
