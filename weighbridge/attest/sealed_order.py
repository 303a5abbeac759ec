"""What is fixed and known to all parties before a sealed worker starts: the order of one job.

Verifier and Prover each give a nonce, so neither can order a job that the other did not take part in, and an answer to
one order is none to another. Nothing in an order tells what the inputs are: they are behind the Prover's commitment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from weighbridge.attest.sealed_channel import KEY_SIZE, NONCE_SIZE, Terms
from weighbridge.attest.tcb import MEASUREMENT_SIZE
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor, record_digest
from weighbridge.core.errors import FormatError, WeighbridgeError

STARTED, KEYED, OUTCOME, REPORT, REFUSED = b"S", b"K", b"O", b"F", b"R"
"""Kinds of what a worker says to its launcher. After a worker heard a Prover, nothing that it says is decoded there."""

NO_KEY = bytes(KEY_SIZE)
"""What stands for the aggregator's key in the order of a dispute."""

_DOMAIN = "sealed-order/1"
_NONCE = b"weighbridge/sealed-nonce/1\x00"
_LIMIT = 4096
_STEPS_END = 1 << 40
_MOST_SECONDS, _MOST = 1 << 31, 1 << 48
MOST_PARTS = 16


class SealedWorkerError(WeighbridgeError):
    """A sealed worker was not started, or ended without an outcome; it says nothing of the job's content."""

    code = "sealed.worker"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Into how many parts the replays of a session may be divided, and whose workers may make them.

    Attributes:
        count: So many parts, each made by a worker of its own.
        authority: BLAKE3 of the certificate (DER) of the authority that vouches for the launchers of these workers.
    """

    count: int
    authority: bytes

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            FormatError: A field is none of its kind.
        """
        if type(self.count) is not int or not 0 < self.count <= MOST_PARTS:
            raise FormatError(f"a sealed session has at most {MOST_PARTS} parts")
        if type(self.authority) is not bytes or len(self.authority) != 32:
            raise FormatError("a sealed session names the authority for workers of its parts by 32 bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What makes a job one part of a session (`weighbridge.attest.sealed_part`).

    Attributes:
        session: Digest of the session's order (32 bytes).
        number: Which part, from 1.
    """

    session: bytes
    number: int

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            FormatError: A field is none of its kind.
        """
        if type(self.session) is not bytes or len(self.session) != 32:
            raise FormatError("a part of a sealed session names the session's order by 32 bytes")
        if type(self.number) is not int or not 0 < self.number <= MOST_PARTS:
            raise FormatError(f"a part of a sealed session has a number from 1 to {MOST_PARTS}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """What makes a job a whole inspection (`weighbridge.attest.sealed_session`), and not one replay.

    Attributes:
        case: Digest of the Verifier's case: which chips, by which plan and rules (32 bytes).
        agreement: Digest of what both parties agreed on about the outcome (32 bytes).
        leaves_after_s: Seconds after the start at which the outcome leaves, however early it is ready.
        parts: By which other workers replays may be made; None: the session's own makes all.
    """

    case: bytes
    agreement: bytes
    leaves_after_s: int
    parts: Parts | None = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            FormatError: A field is none of its kind.
        """
        if any(type(each) is not bytes or len(each) != 32 for each in (self.case, self.agreement)):
            raise FormatError("a sealed session names its case and its agreement by 32 bytes each")
        if type(self.leaves_after_s) is not int or not 0 < self.leaves_after_s <= _MOST_SECONDS:
            raise FormatError("a sealed session's outcome leaves after a whole number of seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Referee:
    """What makes a job the judgement of a dispute (`weighbridge.attest.sealed_dispute`): two parties give files.

    The defender takes the Prover's place in an order, and the challenger the Verifier's.

    Attributes:
        terms: Digest of what both parties agreed on (32 bytes).
        challenger: The challenger's public key of the channel.
        commitment: The challenger's, to the list of its files (32 bytes).
        inputs: So many bytes each party's files may have.
        memory: So many bytes the storages of each party's steps may have.
        leaves_after_s: Seconds after the attestation at which the ruling leaves, however early it is ready: a slow
            start of the worker takes nothing of the parties' time.
    """

    terms: bytes
    challenger: bytes
    commitment: bytes
    inputs: int
    memory: int
    leaves_after_s: int

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            FormatError: A field is none of its kind.
        """
        fields = (self.terms, self.challenger, self.commitment)
        if any(type(each) is not bytes or len(each) != 32 for each in fields):
            raise FormatError("a sealed dispute names its terms, a key and a commitment by 32 bytes each")
        if type(self.leaves_after_s) is not int or not 0 < self.leaves_after_s <= _MOST_SECONDS:
            raise FormatError("a sealed dispute's ruling leaves after a whole number of seconds")
        if any(type(each) is not int or not 0 < each <= _MOST for each in (self.inputs, self.memory)):
            raise FormatError("a sealed dispute's order says how many bytes each party's files and steps may have")


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One job of a sealed worker.

    Attributes:
        verifier_nonce: The Verifier's 32 random bytes, for this job only.
        prover_nonce: The Prover's 32 random bytes, for this job only.
        commitment: The Prover's, to the list of the job's files (32 bytes).
        prover: The Prover's public key: the worker takes files from no other party.
        aggregator: The public key that the outcome is encrypted to.
        measurement: Of the image that both parties agreed to run (48 bytes).
        steps: First step to replay and the one after the last; None for all.
        session: What to inspect, if the job is a whole inspection; then there are no steps, and the full report is
            encrypted to the aggregator's key.
        referee: What to judge, if the job is a dispute; then there are no steps, and the aggregator's key is zeros: the
            ruling is encrypted to no key.
        part: Of which session the job is a part; then there are no steps, and the aggregator's key is that of the
            session's worker.
    """

    verifier_nonce: bytes
    prover_nonce: bytes
    commitment: bytes
    prover: bytes
    aggregator: bytes
    measurement: bytes
    steps: tuple[int, int] | None = None
    session: Session | None = None
    referee: Referee | None = None
    part: Part | None = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            FormatError: A field is none of its kind.
        """
        sizes = (NONCE_SIZE, NONCE_SIZE, 32, KEY_SIZE, KEY_SIZE, MEASUREMENT_SIZE)
        fields = self._fields()
        if any(type(each) is not bytes or len(each) != size for each, size in zip(fields, sizes, strict=True)):
            raise FormatError("a field of a sealed job's order has not the size that it has to have")
        if self.steps is not None:
            first, end = self.steps
            if type(first) is not int or type(end) is not int or not 0 <= first < end < _STEPS_END:
                raise FormatError("a sealed job's order names no range of steps")
            if any(each is not None for each in (self.session, self.referee, self.part)):
                raise FormatError("the order of a sealed session, part or dispute names steps, which it has none of")
        if self.part is not None and (self.session is not None or self.referee is not None):
            raise FormatError("the order of a part is no session's and no dispute's")
        if self.referee is not None and (self.session is not None or self.aggregator != NO_KEY):
            raise FormatError("the order of a sealed dispute is no session's, and names no key for an outcome")

    def _fields(self) -> tuple[bytes, ...]:
        return (
            self.verifier_nonce, self.prover_nonce, self.commitment, self.prover, self.aggregator, self.measurement,
        )  # fmt: skip

    @property
    def nonce(self) -> bytes:
        """What names the job in its channel: a digest of both parties' nonces."""
        return blake3(_NONCE + self.verifier_nonce + self.prover_nonce).digest()

    @property
    def digest(self) -> bytes:
        """Stands for the whole order (32 bytes)."""
        return record_digest(_DOMAIN, self._value())

    def terms(self, worker: bytes) -> Terms:
        """Returns the terms of the channel to the worker with this public key: of the Prover, or of the defender."""
        return Terms(self.nonce, self.commitment, worker, self.prover)

    def challenger_terms(self, worker: bytes) -> Terms:
        """Returns the terms of the challenger's channel to the worker with this public key.

        Raises:
            FormatError: The job is no dispute.
        """
        if self.referee is None:
            raise FormatError("a sealed job that is no dispute has no challenger")
        return Terms(self.nonce, self.referee.commitment, worker, self.referee.challenger)

    @property
    def leaves_after_s(self) -> int | None:
        """Seconds after the start, or of a dispute the attestation, at which the outcome leaves; None: when ready."""
        timed = self.session or self.referee
        return None if timed is None else timed.leaves_after_s

    def to_cbor(self) -> bytes:
        """Returns the one encoding of this order."""
        return cbor(self._value())

    def _value(self) -> list[object]:
        common: list[object] = [*self._fields(), None if self.steps is None else list(self.steps)]
        if self.session is not None:
            parts = self.session.parts
            divided = [] if parts is None else [[parts.count, parts.authority]]
            return [*common, [self.session.case, self.session.agreement, self.session.leaves_after_s, *divided]]
        if self.part is not None:
            return [*common, [self.part.session, self.part.number]]
        if self.referee is not None:
            named = self.referee
            agreed = [named.inputs, named.memory, named.leaves_after_s]
            return [*common, [named.terms, named.challenger, named.commitment, *agreed]]
        return common

    @classmethod
    def from_cbor(cls, data: bytes) -> Order:
        """Reads an order.

        Law: `from_cbor(o.to_cbor()) == o`; and where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            FormatError: The bytes are not the encoding of an order.
        """
        if len(data) > _LIMIT:
            raise FormatError("an order of a sealed job is too large")
        match decode_cbor(data, max_depth=3):
            case [
                verifier, prover_nonce, commitment, prover, aggregator, measurement, ([_, _] | None) as steps,
                *what,
            ]:  # fmt: skip
                session, referee, part = _what(what)
                found = cls(
                    verifier_nonce=verifier, prover_nonce=prover_nonce, commitment=commitment, prover=prover,
                    aggregator=aggregator, measurement=measurement, steps=None if steps is None else tuple(steps),
                    session=session, referee=referee, part=part,
                )  # fmt: skip
            case _:
                raise FormatError("an order of a sealed job is not six strings, a range of steps and what else it is")
        if found.to_cbor() != data:
            raise FormatError("an order of a sealed job is not in its one encoding")
        return found


def _what(value: list[Any]) -> tuple[Session | None, Referee | None, Part | None]:
    match value:
        case []:
            return None, None, None
        case [[case, agreement, leaves_after_s]]:
            return Session(case=case, agreement=agreement, leaves_after_s=leaves_after_s), None, None
        case [[case, agreement, leaves_after_s, [count, authority]]]:
            parts = Parts(count=count, authority=authority)
            return Session(case=case, agreement=agreement, leaves_after_s=leaves_after_s, parts=parts), None, None
        case [[session, number]]:
            return None, None, Part(session=session, number=number)
        case [[terms, challenger, commitment, inputs, memory, leaves_after_s]]:
            found = Referee(
                terms=terms, challenger=challenger, commitment=commitment, inputs=inputs, memory=memory,
                leaves_after_s=leaves_after_s,
            )  # fmt: skip
            return None, found, None
    raise FormatError("an order of a sealed job ends with something that is no session, part or dispute")
