"""What a chip opens to one attested worker: encrypted to that worker's one-time key, and of no use to any other.

A chip that opens to sealed workers alone is told at its boot whose they are: the authority that vouches for launchers,
the images that may run, and the Prover whose orders count. It is shown an order and a launcher's attestation, checks
both, and encrypts what it opens to the key that the attestation names.

A box has no sender, and needs none: what is in it is compared with what the chip's token commits to.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO, Literal, get_args

from nacl.exceptions import CryptoError
from nacl.public import PublicKey, SealedBox

from weighbridge.attest.quotes import QuoteVerifier
from weighbridge.attest.sealed_attestation import ATTESTATION_LIMIT, Attested
from weighbridge.attest.sealed_channel import SealedInputError, WorkerKey, exactly
from weighbridge.attest.sealed_order import Order
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import Leaf, cbor
from weighbridge.core.errors import ChipError, FormatError, WeighbridgeError

Kind = Literal["snapshot", "token"]
KINDS: tuple[Kind, ...] = get_args(Kind)

ORDER_LIMIT = 4096
BOXES_LIMIT = 256 << 20
"""So many bytes all boxes of a session may have together."""
SMALLEST = 4096
_ITEMS = 1 << 20
_DOMAIN = b"weighbridge/worker-opening/1\x00"
_LENGTH = 8
_FRAME = struct.Struct(">I")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trusted:
    """Which workers a chip opens to.

    Attributes:
        workers: Checks what is said of workers: by the authority that vouches for launchers, for example.
        authority: Names what that check rests on: the BLAKE3 of the authority's certificate (DER), for example.
        prover: The Prover's public key of sealed jobs (32 bytes): of other orders nothing is opened.
        images: Measurements of the images that may run (48 bytes each).
    """

    workers: QuoteVerifier
    authority: bytes
    prover: bytes
    images: frozenset[bytes]

    @property
    def kept(self) -> bytes:
        """What a chip keeps beside a snapshot, so that no later boot opens it to other workers."""
        return cbor([self.authority, self.prover, sorted(self.images)])

    def permits(self, order: Order, kept: bytes) -> bool:
        """Whether a worker whose evidence this boot checked is one of those that something was kept for.

        Args:
            order: The worker's, as `check` returned it.
            kept: What was kept beside it, by an earlier boot or by this one.
        """
        match decode_cbor(kept, max_depth=2):
            case [authority, prover, [*images]]:
                return (authority, prover) == (self.authority, order.prover) and order.measurement in images
        return False

    def check(self, order: bytes, attestation: bytes) -> tuple[Order, Attested]:
        """Checks a worker's evidence: on the chip.

        Args:
            order: The job that the worker was started for, encoded; hostile.
            attestation: What its launcher says of it; hostile.

        Raises:
            ChipError: It is of another Prover's order, of another image or of no inspection, or not what a launcher of
                this authority said of this order (`chip.worker`).
        """
        try:
            if len(order) > ORDER_LIMIT or len(attestation) > ATTESTATION_LIMIT:
                raise FormatError("it is too large")
            found = Order.from_cbor(order)
            attested = self.workers.verify(attestation, found)
        except WeighbridgeError as error:
            raise refused(error.message) from error
        if found.session is None:  # workers of other jobs take nothing from chips
            raise refused("the order is of no sealed inspection")
        if found.prover != self.prover:
            raise refused("the order is of another Prover than this chip was started for")
        if found.measurement not in self.images:
            raise refused("the image is none of those that this chip was started for")
        return found, attested


@dataclass(frozen=True, slots=True)
class Box:
    """One opening, encrypted to a worker.

    Attributes:
        ueid: The chip's.
        kind: What it opens: a snapshot or the hidden fields of a token.
        index: The place in the chip's log.
        data: The encrypted content.
    """

    ueid: bytes
    kind: Kind
    index: int
    data: bytes


def seal(content: bytes, order: Order, worker: bytes, ueid: bytes, kind: Kind, index: int) -> Box:
    """Encrypts an opening: on the chip.

    It is filled up to a power of two, so that its length says little of how many tensors there are.

    Args:
        content: What opens the snapshot or the token.
        order: The order of the worker's job.
        worker: The worker's public key, out of evidence that was checked.
        ueid: The chip's.
        kind: What it opens.
        index: The place in the chip's log.

    Raises:
        ChipError: The worker's key is none (`chip.worker`).
    """
    plain = _bound(order, ueid, kind, index) + len(content).to_bytes(_LENGTH) + content
    size = max(SMALLEST, 1 << (len(plain) - 1).bit_length())
    try:
        data = bytes(SealedBox(PublicKey(worker)).encrypt(plain.ljust(size, b"\x00")))
    except (CryptoError, ValueError):
        raise refused("the worker's key is none") from None
    return Box(ueid, kind, index, data)


def opened(box: Box, order: Order, key: WorkerKey) -> bytes:
    """Returns what a box opens: in the worker.

    Raises:
        SealedInputError: It is to another worker, or of another order, chip, kind or place than it says.
    """
    plain, bound = key.open(box.data), _bound(order, box.ueid, box.kind, box.index)
    start = len(bound) + _LENGTH
    length = int.from_bytes(plain[len(bound) : start])
    if not plain.startswith(bound) or not start + length <= len(plain) or any(plain[start + length :]):
        raise SealedInputError("an opening of a chip is of another order, chip or place than it says")
    return plain[start : start + length]


def pack(salt: bytes, leaves: list[Leaf], weights: list[Leaf]) -> bytes:
    """Returns the opening of a snapshot as a worker takes it: salt, leaves, and those of the weights region."""
    parts = {"leaves": leaves, "weights": weights}
    lists = {name: [[size for size, _ in each], b"".join(digest for _, digest in each)] for name, each in parts.items()}
    return cbor({"salt": salt, **lists})


def encode(boxes: Iterable[Box]) -> bytes:
    """Returns boxes in their one encoding, ascending by chip, kind and place."""
    return cbor([[each.ueid, each.kind, each.index, each.data] for each in sorted(boxes, key=_place)])


def decode(data: bytes) -> list[Box]:
    """Reads boxes.

    Law: `encode(decode(data)) == data` where it returns.

    Raises:
        FormatError: The bytes are not the encoding of boxes, or one is there twice.
    """
    if len(data) > BOXES_LIMIT:
        raise FormatError("the openings of chips are too large")
    found: list[Box] = []
    listed = decode_cbor(data, max_depth=3, max_items=_ITEMS)
    for each in listed if isinstance(listed, list) else [listed]:
        match each:
            case [bytes(ueid), "snapshot" | "token" as kind, int(index), bytes(box)] if 17 <= len(ueid) <= 33:
                if type(index) is not int or not 0 <= index < 1 << 53:
                    raise FormatError("an opening of a chip has no place")
                found.append(Box(ueid, kind, index, box))
            case _:
                raise FormatError("an opening of a chip is a UEID, a kind, a place and a box")
    if encode(found) != data or len({_place(each) for each in found}) != len(found):
        raise FormatError("the openings of chips are not in their one encoding")
    return found


def send(sink: BinaryIO, boxes: Iterable[Box]) -> None:
    """Writes boxes to a worker that waits for them, before the Prover's stream.

    Raises:
        OSError: They cannot be written.
        FormatError: They are too large.
    """
    data = encode(boxes)
    if len(data) > BOXES_LIMIT:
        raise FormatError("the openings of chips are too large; draw fewer chips")
    sink.write(_FRAME.pack(len(data)) + data)
    sink.flush()


def receive(source: BinaryIO, order: Order, key: WorkerKey) -> dict[tuple[bytes, Kind, int], bytes]:
    """Returns what opens snapshots and tokens, by chip, kind and place: in the worker, before the Prover's stream.

    A box that does not open is left out: what it was to open counts as withheld.

    Raises:
        SealedInputError: They have a length that they cannot have, or do not come.
        FormatError: They are no boxes.
    """
    (length,) = _FRAME.unpack(exactly(source, _FRAME.size))
    if not 0 < length <= BOXES_LIMIT:
        raise SealedInputError("the openings of chips have a length that none have")
    found: dict[tuple[bytes, Kind, int], bytes] = {}
    for box in decode(exactly(source, length)):
        with contextlib.suppress(SealedInputError):
            found[box.ueid, box.kind, box.index] = opened(box, order, key)
    return found


def _place(box: Box) -> tuple[bytes, str, int]:
    return box.ueid, box.kind, box.index


def _bound(order: Order, ueid: bytes, kind: Kind, index: int) -> bytes:
    return _DOMAIN + cbor([order.digest, ueid, kind, index])


def refused(why: str) -> ChipError:
    """Returns the error of a chip that opens nothing to a worker."""
    return ChipError(
        f"This chip opens nothing to that worker: {why}; give it the order and the attestation of a worker that it was "
        "started for.",
        code="chip.worker",
    )
