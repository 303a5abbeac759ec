"""An order of a training: what a client ordered and a service accepted, signed by both.

The client makes a *rehearsal*, a recording of a few steps of the program that it wants, and orders as many steps of
that. So an order names programs, numbers and data by digests that any recording of the same program has, and what is
delivered can be compared with it without executing anything (`verifier.auditing.delivery`). Format:
docs/formats/training-order.md.

Reading is strict: an order has one encoding, and everything else is an `OrderError`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from weighbridge.attest.manifest import SigningKey, valid_name
from weighbridge.attest.outcome_agreement import SIGNATURE_SIZE, signed_by
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import DIGEST_SIZE, cbor, record_digest
from weighbridge.core.errors import FormatError, WeighbridgeError

FORMAT = 1
ORDER_LIMIT = 1 << 16
"""So many bytes a signed order may have."""

LOGS = ("full", "on-demand", "sketch")
"""Kinds of rounding logs, as drafts know them."""

_MOST_PROGRAMS, _MOST_STEPS, _MOST_SEED = 256, 1 << 32, 1 << 64
_CLIENT, _SERVICE = (b"weighbridge/training-order/1/" + role + b"\x00" for role in (b"client", b"service"))


class OrderError(WeighbridgeError):
    """An order of a training is malformed, or its signatures do not verify."""

    code = "order.malformed"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingOrder:
    """What is ordered.

    Attributes:
        name: What the client calls it.
        client: The key that ordered it (raw Ed25519, 32 bytes).
        service: The key that is to accept it and to sign the transcript.
        steps: Updates: step records of kind `step`.
        passport: Digest of the passport of the programs (32 bytes).
        numbers: Digest of each program's tape to the digest of the numbers that it takes (32 bytes each).
        data: Root over the records of the data set (32 bytes).
        records: How many records it has.
        seed: Of all randomness, and of the order of use of the data; None if both have to follow from the data.
        logs: Which kind of rounding logs the transcript has to have.
        runs: Digest of a program's tape to how often it has to run at least; of other programs the service decides.
        nonce: 32 random bytes: two orders of the same training are not the same order.
    """

    name: str
    client: bytes
    service: bytes
    steps: int
    passport: bytes
    numbers: Mapping[bytes, bytes]
    data: bytes
    records: int
    seed: int | None
    logs: str = "full"
    runs: Mapping[bytes, int] = field(default_factory=dict)
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(DIGEST_SIZE))

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            OrderError: A field is none of its kind.
        """
        if not valid_name(self.name):
            raise OrderError("an order of a training needs a name of printable characters")
        numbers: Any = self.numbers
        if not isinstance(numbers, Mapping) or not 1 <= len(numbers) <= _MOST_PROGRAMS:
            raise OrderError(f"an order of a training names 1 to {_MOST_PROGRAMS} programs")
        digests = (self.passport, self.data, self.nonce, *self.numbers, *self.numbers.values())
        if any(type(each) is not bytes or len(each) != DIGEST_SIZE for each in (*digests, self.client, self.service)):
            raise OrderError("keys and digests of an order have 32 bytes")
        if self.client == self.service:
            raise OrderError("client and service of an order are two parties, each with a key of its own")
        for number, most in ((self.steps, _MOST_STEPS), (self.records, _MOST_STEPS)):
            if type(number) is not int or not 1 <= number < most:
                raise OrderError("an order has at least one step, and its data set at least one record")
        if self.seed is not None and (type(self.seed) is not int or not 0 <= self.seed < _MOST_SEED):
            raise OrderError("the seed of an order is a natural number below 2^64, or none")
        if type(self.logs) is not str or self.logs not in LOGS:
            raise OrderError(f"the logs of an order are {', '.join(LOGS)}")
        runs: Any = self.runs
        if not isinstance(runs, Mapping) or not runs.keys() <= numbers.keys():
            raise OrderError("an order says of the programs that it names how often they run, and of no others")
        if any(type(each) is not int or not 1 <= each <= self.steps for each in runs.values()):
            raise OrderError("a program runs once at least, and in no more steps than are ordered")
        if sum(runs.values()) > self.steps + 1:  # the initialisation is a program too
            raise OrderError("the programs of an order cannot run so often in so few steps")
        object.__setattr__(self, "numbers", MappingProxyType(dict(self.numbers)))
        object.__setattr__(self, "runs", MappingProxyType(dict(self.runs)))

    @property
    def digest(self) -> bytes:
        """What names the order (32 bytes)."""
        return record_digest("training-order/1", self.to_cbor())

    def to_cbor(self) -> bytes:
        """Returns the one encoding of this order."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return cbor({"format": FORMAT, **values, "numbers": dict(self.numbers), "runs": dict(self.runs)})

    @classmethod
    def from_cbor(cls, data: bytes) -> TrainingOrder:
        """Reads an order.

        Law: `from_cbor(o.to_cbor()) == o`; and where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            OrderError: The bytes are not the encoding of an order.
        """
        values = _mapping(data, {"format", *(each.name for each in fields(cls))}, "an order of a training")
        if type(values["format"]) is not int or values.pop("format") != FORMAT:
            raise OrderError(f"this version reads orders of format {FORMAT} only")
        order = cls(**values)
        if order.to_cbor() != data:
            raise OrderError("an order of a training is not in its one encoding")
        return order


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedOrder:
    """An order whose signatures were verified.

    Attributes:
        order: What is ordered.
        ordered: The client's signature (64 bytes).
        accepted: The service's; empty as long as it has not accepted.
    """

    order: TrainingOrder
    ordered: bytes
    accepted: bytes = b""

    def __post_init__(self) -> None:
        """Checks the signatures.

        Raises:
            OrderError: One does not verify (`order.signature`).
        """
        said = self.order.to_cbor()
        if not signed_by(self.order.client, _CLIENT + said, self.ordered):
            raise OrderError("the client's signature of an order does not verify", code="order.signature")
        if self.accepted and not signed_by(self.order.service, _SERVICE + said, self.accepted):
            raise OrderError("the service's signature of an order does not verify", code="order.signature")

    def accept(self, key: SigningKey) -> SignedOrder:
        """Returns the order as the service accepts it.

        Raises:
            OrderError: It was ordered of another key (`order.signature`).
        """
        if key.public != self.order.service:
            raise OrderError("this training was ordered of another service than this key's", code="order.signature")
        return replace(self, accepted=key.sign(_SERVICE + self.order.to_cbor()))

    def require_accepted(self) -> TrainingOrder:
        """Returns the order.

        Raises:
            OrderError: The service has not accepted it (`order.signature`).
        """
        if not self.accepted:
            raise OrderError("the service has not accepted this order; have it do so", code="order.signature")
        return self.order

    def to_cbor(self) -> bytes:
        """Returns the bytes of the order's file."""
        return cbor({"order": self.order.to_cbor(), "ordered": self.ordered, "accepted": self.accepted})

    @classmethod
    def from_cbor(cls, data: bytes) -> SignedOrder:
        """Reads an order's file and verifies its signatures.

        Law: where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            OrderError: The bytes are no signed order, or a signature does not verify.
        """
        values = _mapping(data, {"order", "ordered", "accepted"}, "a signed order")
        order, ordered, accepted = values["order"], values["ordered"], values["accepted"]
        if any(type(each) is not bytes for each in (order, ordered, accepted)):
            raise OrderError("a signed order holds the bytes of the order and of two signatures")
        if len(ordered) != SIGNATURE_SIZE or len(accepted) not in (0, SIGNATURE_SIZE):
            raise OrderError(f"a signature of an order has {SIGNATURE_SIZE} bytes")
        return cls(order=TrainingOrder.from_cbor(order), ordered=ordered, accepted=accepted)


def sign(order: TrainingOrder, key: SigningKey) -> SignedOrder:
    """Returns an order that its client signed.

    Raises:
        OrderError: The order names another client (`order.signature`).
    """
    return SignedOrder(order=order, ordered=key.sign(_CLIENT + order.to_cbor()))


def _mapping(data: bytes, names: set[str], what: str) -> dict[str, Any]:
    """Returns the map with exactly these keys that some bytes encode."""
    try:
        value = decode_cbor(data, max_depth=3, max_items=4096) if len(data) <= ORDER_LIMIT else None
    except FormatError:
        value = None
    if not isinstance(value, dict) or value.keys() != names:
        raise OrderError(f"{what} is no map of deterministic CBOR with the keys {', '.join(sorted(names))}")
    return value
