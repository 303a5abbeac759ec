"""What is fixed and known to all parties before a sealed worker starts: the order of one job.

Verifier and Prover each give a nonce, so neither can order a job that the other did not take part in, and an answer to
one order is none to another. Nothing in an order tells what the inputs are: they are behind the Prover's commitment.
"""

from __future__ import annotations

from dataclasses import dataclass

from blake3 import blake3

from weighbridge.attest.sealed_channel import KEY_SIZE, NONCE_SIZE, Terms
from weighbridge.attest.tcb import MEASUREMENT_SIZE
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor, record_digest
from weighbridge.core.errors import FormatError, WeighbridgeError

STARTED, OUTCOME, REFUSED = b"S", b"O", b"R"
"""Kinds of what a worker says to its launcher. After a worker heard a Prover, nothing that it says is decoded there."""

_DOMAIN = "sealed-order/1"
_NONCE = b"weighbridge/sealed-nonce/1\x00"
_LIMIT = 4096
_STEPS_END = 1 << 40


class SealedWorkerError(WeighbridgeError):
    """A sealed worker was not started, or ended without an outcome; it says nothing of the job's content."""

    code = "sealed.worker"


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
    """

    verifier_nonce: bytes
    prover_nonce: bytes
    commitment: bytes
    prover: bytes
    aggregator: bytes
    measurement: bytes
    steps: tuple[int, int] | None = None

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
        """Returns the terms of the channel to the worker with this public key."""
        return Terms(self.nonce, self.commitment, worker, self.prover)

    def to_cbor(self) -> bytes:
        """Returns the one encoding of this order."""
        return cbor(self._value())

    def _value(self) -> list[object]:
        return [*self._fields(), None if self.steps is None else list(self.steps)]

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
            case [verifier, prover_nonce, commitment, prover, aggregator, measurement, ([_, _] | None) as steps]:
                found = cls(
                    verifier_nonce=verifier, prover_nonce=prover_nonce, commitment=commitment, prover=prover,
                    aggregator=aggregator, measurement=measurement, steps=None if steps is None else tuple(steps),
                )  # fmt: skip
            case _:
                raise FormatError("an order of a sealed job is not six strings of bytes and a range of steps")
        if found.to_cbor() != data:
            raise FormatError("an order of a sealed job is not in its one encoding")
        return found
