"""Parts of a sealed session: replays that other workers of its image make for it, and hand to it alone.

The session's worker is the *aggregator*: it alone compares memory, follows lineages and judges. A part is a job of its
own, whose order follows from the session's order, the key of the session's worker and the part's number, so there is
nothing in it to choose: not its files, its image, its nonces, nor to whom its results go. A launcher logs its start and
vouches for it as for any job.

The aggregator derives the same order, and takes a part's results if a launcher of the authority in the signed order
vouches for a worker of it, and that worker signed them. What is refused or does not come, it makes itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from weighbridge.attest.certificates import load_der
from weighbridge.attest.quotes import QuoteVerifier
from weighbridge.attest.sealed_attestation import ATTESTATION_LIMIT, LauncherVerifier
from weighbridge.attest.sealed_channel import SealedInputError, WorkerKey, exactly
from weighbridge.attest.sealed_order import MOST_PARTS, Order, Part, Parts
from weighbridge.attest.sealed_outcome import OUTCOME_LIMIT, signed_body
from weighbridge.attest.sealed_session import CASE_LIMIT, case_digest, message
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import bytes_digest, cbor, record_digest
from weighbridge.core.errors import FormatError, WeighbridgeError

SMALLEST = 1 << 16
"""So many bytes results have at least, filled up."""
ROOT_LIMIT = 16 << 10
_ORDER_LIMIT = 4096
BOX_LIMIT = OUTCOME_LIMIT + 4096
"""So many bytes the results of a part have at most, encrypted."""
_FRAMES_LIMIT = MOST_PARTS * (BOX_LIMIT + ATTESTATION_LIMIT) + ROOT_LIMIT + 4096
_ITEMS = 1 << 20
_LENGTH = struct.Struct(">Q")
_FRAME = struct.Struct(">I")
_KEY = 32
_MOST = 1 << 53


def part_order(order: Order, worker: bytes, number: int) -> Order:
    """Returns the one order of a part.

    Args:
        order: The session's.
        worker: The public key of the session's worker, out of an attestation that was verified.
        number: Which part, from 1.

    Raises:
        FormatError: The session has no such part.
    """
    parts = None if order.session is None else order.session.parts
    if parts is None or not 0 < number <= parts.count:
        raise FormatError(f"the order is of no session that has a part {number}")
    bound = [order.digest, worker, number]
    return replace(
        order, verifier_nonce=record_digest("sealed-part-nonce/1", [*bound, "verifier"]),
        prover_nonce=record_digest("sealed-part-nonce/1", [*bound, "prover"]), aggregator=worker, session=None,
        part=Part(session=order.digest, number=number),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class PartPreface:
    """What comes before a Prover's stream to a part's worker; each message comes after its length in four bytes.

    Attributes:
        order: The session's order, encoded.
        case: The Verifier's case, encoded.
    """

    order: bytes
    case: bytes

    def send(self, sink: BinaryIO) -> None:
        """Writes both.

        Raises:
            OSError: They cannot be written.
        """
        for each in (self.order, self.case):
            sink.write(_FRAME.pack(len(each)) + each)
        sink.flush()

    @classmethod
    def receive(cls, source: BinaryIO) -> PartPreface:
        """Reads both; nothing of them is parsed here.

        Raises:
            SealedInputError: One has a length that it cannot have, or does not come.
        """
        return cls(order=message(source, _ORDER_LIMIT), case=message(source, CASE_LIMIT))

    def of_part(self, order: Order) -> Parts:
        """Checks that both are of a part's session: in its worker.

        Args:
            order: What the worker was started with.

        Returns:
            Into how many parts the session is divided.

        Raises:
            SealedInputError: They are not, or the part's order does not follow from the session's.
            FormatError: The session's order is none.
        """
        session = Order.from_cbor(self.order)
        if order.part is None or session.session is None or session.session.parts is None:
            raise SealedInputError("this is no part of a session")
        if part_order(session, order.aggregator, order.part.number) != order:
            raise SealedInputError("the order of the part is not the one that follows from the session's")
        if case_digest(self.case) != session.session.case:
            raise SealedInputError("this is not the case that the session's order names")
        return session.session.parts


@dataclass(frozen=True, kw_only=True, slots=True)
class PartResults:
    """What a part's worker hands to the aggregator.

    Attributes:
        memory: Bytes that each of its replays had.
        seconds: Seconds that each had.
        replays: What each found, encoded, by the 32 bytes that name it.
    """

    memory: int
    seconds: int
    replays: Mapping[bytes, bytes] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Returns the encoding, filled up to a power of two. What there is no room for is left out, smallest first in.

        Law: `from_bytes(r.to_bytes()) == r`, where there is room for all.
        """
        left, kept = OUTCOME_LIMIT - SMALLEST // 16, dict[bytes, bytes]()
        for key, value in sorted(self.replays.items(), key=lambda each: (len(each[1]), each[0])):
            left -= len(value) + _KEY + 16
            if left < 0:
                break
            kept[key] = value
        content = cbor([self.memory, self.seconds, [[key, kept[key]] for key in sorted(kept)]])
        plain = _LENGTH.pack(len(content)) + content
        return plain.ljust(max(SMALLEST, 1 << (len(plain) - 1).bit_length()), b"\x00")

    @classmethod
    def from_bytes(cls, data: bytes) -> PartResults:
        """Reads results.

        Law: where `from_bytes(data)` returns, its `to_bytes()` is `data`.

        Raises:
            FormatError: The bytes are not the encoding of results.
        """
        if not SMALLEST <= len(data) <= OUTCOME_LIMIT:
            raise FormatError("results of a part have a size that none have")
        (length,) = _LENGTH.unpack(data[: _LENGTH.size])
        match decode_cbor(data[_LENGTH.size : _LENGTH.size + length], max_depth=3, max_items=_ITEMS):
            case [int(memory), int(seconds), [*listed]] if type(memory) is int and type(seconds) is int:
                pass
            case _:
                raise FormatError("results of a part are two limits and a list")
        if not (0 < memory <= _MOST and 0 < seconds <= _MOST):
            raise FormatError("results of a part have limits that no replay has")
        replays: dict[bytes, bytes] = {}
        for each in listed:
            match each:
                case [bytes(key), bytes(value)] if len(key) == _KEY:
                    replays[key] = value
                case _:
                    raise FormatError("a result of a part is 32 bytes that name it, and its content")
        found = cls(memory=memory, seconds=seconds, replays=replays)
        if found.to_bytes() != data:
            raise FormatError("results of a part are not in their one encoding")
        return found


@dataclass(frozen=True, slots=True)
class PartBox:
    """What comes of a part.

    Attributes:
        number: Which part, from 1.
        attestation: What the launcher says of its worker.
        box: Its results, signed and encrypted to the aggregator.
    """

    number: int
    attestation: bytes
    box: bytes


@dataclass(frozen=True, slots=True)
class SealedParts:
    """What comes of all parts, as the aggregator is sent it.

    Attributes:
        root: The certificate (DER) of the authority that vouches for launchers.
        boxes: At most one of each part, ascending by number.
    """

    root: bytes
    boxes: tuple[PartBox, ...] = ()

    def to_cbor(self) -> bytes:
        """Returns the one encoding."""
        return cbor([self.root, [[each.number, each.attestation, each.box] for each in self.boxes]])

    @classmethod
    def of(cls, root: bytes, boxes: Iterable[PartBox]) -> SealedParts:
        """Puts boxes in order.

        Args:
            root: The authority's certificate (DER).
            boxes: Of different parts.
        """
        return cls(root, tuple(sorted(boxes, key=lambda each: each.number)))

    @classmethod
    def from_cbor(cls, data: bytes) -> SealedParts:
        """Reads what came.

        Law: where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            FormatError: The bytes are not the one encoding of it, or one part is there twice.
        """
        match decode_cbor(data, max_depth=3, max_items=1024):
            case [bytes(root), [*listed]] if len(root) <= ROOT_LIMIT:
                pass
            case _:
                raise FormatError("parts of a session are a certificate and a list")
        boxes = []
        for each in listed:
            match each:
                case [int(number), bytes(attestation), bytes(box)] if type(number) is int:
                    boxes.append(PartBox(number, attestation, box))
                case _:
                    raise FormatError("a part of a session is a number, an attestation and a box")
        numbers = [each.number for each in boxes]
        if numbers != sorted(set(numbers)) or not all(0 < each <= MOST_PARTS for each in numbers):
            raise FormatError("the parts of a session do not ascend, or one is there twice")
        found = cls(root, tuple(boxes))
        if found.to_cbor() != data:
            raise FormatError("the parts of a session are not in their one encoding")
        return found

    def send(self, sink: BinaryIO) -> None:
        """Writes them to an aggregator that waits for them, before the Prover's stream.

        Raises:
            OSError: They cannot be written.
        """
        data = self.to_cbor()
        sink.write(_FRAME.pack(len(data)) + data)
        sink.flush()

    @classmethod
    def receive(cls, source: BinaryIO) -> SealedParts:
        """Reads them: in the aggregator.

        Raises:
            SealedInputError: They have a length that they cannot have, or do not come.
            FormatError: They are none.
        """
        (length,) = _FRAME.unpack(exactly(source, _FRAME.size))
        if not 0 < length <= _FRAMES_LIMIT:
            raise SealedInputError("the parts of a session have a length that none have")
        return cls.from_cbor(exactly(source, length))

    def opened(self, order: Order, key: WorkerKey) -> dict[int, PartResults | WeighbridgeError]:
        """Returns the results of each part, or why they are refused: in the aggregator.

        Args:
            order: The session's.
            key: The aggregator's.

        Raises:
            SealedInputError: The session has no parts, or the certificate is of another authority than its order names.
            IdentityError: The certificate is none.
        """
        parts = None if order.session is None else order.session.parts
        if parts is None or bytes_digest(self.root) != parts.authority:
            raise SealedInputError("the workers of these parts are of another authority than the order names")
        workers = LauncherVerifier(load_der(self.root))
        return {each.number: _results(each, order, key, workers) for each in self.boxes}


def _results(box: PartBox, order: Order, key: WorkerKey, workers: QuoteVerifier) -> PartResults | WeighbridgeError:
    try:
        ordered = part_order(order, key.public, box.number)
        attested = workers.verify(box.attestation, ordered)
        if len(box.box) > BOX_LIMIT:
            raise FormatError("the results of a part are too large")
        return PartResults.from_bytes(signed_body(key.open(box.box), ordered, attested.signer))
    except WeighbridgeError as error:
        return error
