"""Images of sealed workers as endorsers sign them: what an image is, and who made the same one.

An *endorser* makes the image for itself, from the releases that it names, and signs what it got: the measurement and
what it is of. Endorsements are collected into one entry of a log that only grows (`weighbridge.attest.image_log`). What
parties agree on before they agree on an image is a policy (`weighbridge.attest.image_policy`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from weighbridge.attest.manifest import SigningKey
from weighbridge.attest.outcome_agreement import SIGNATURE_SIZE, signed_by
from weighbridge.attest.sealed_order import SealedWorkerError
from weighbridge.attest.tcb import MEASUREMENT_SIZE
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, UsageError

ENTRY_LIMIT = 8192
MOST_KEYS = 32
_DOMAIN = b"weighbridge/image-release/1\x00"
_KEY = 32
_TEXT_LIMIT = 64
_MOST_SIZE = 1 << 44


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """What an endorser says of an image that it made.

    Attributes:
        measurement: Of the image (48 bytes).
        version: Of our software that it was made of.
        processor: The kind of processor that its loops were compiled for.
        files: How many files it has.
        size: Their bytes.
    """

    measurement: bytes
    version: str
    processor: str
    files: int
    size: int

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            FormatError: A field is none of its kind.
        """
        if type(self.measurement) is not bytes or len(self.measurement) != MEASUREMENT_SIZE:
            raise FormatError(f"the release of an image names a measurement of {MEASUREMENT_SIZE} bytes")
        for text in (self.version, self.processor):
            if type(text) is not str or not 0 < len(text) <= _TEXT_LIMIT or not (text.isascii() and text.isprintable()):
                raise FormatError("the release of an image has a version and a kind of processor in printable ASCII")
        if any(type(each) is not int or not 0 < each <= _MOST_SIZE for each in (self.files, self.size)):
            raise FormatError("the release of an image has a number of files and their size")

    @property
    def fields(self) -> list[Any]:
        """All fields, in the order in which they are written."""
        return [self.measurement, self.version, self.processor, self.files, self.size]


@dataclass(frozen=True, slots=True)
class Endorsed:
    """A release and who signed it; the entry of a log. That signatures are good is checked by `signers`.

    Attributes:
        release: The release.
        signatures: Public key (32 bytes) and signature of each endorser, ascending by key, each key once.
    """

    release: Release
    signatures: tuple[tuple[bytes, bytes], ...]

    def __post_init__(self) -> None:
        """Checks the shape.

        Raises:
            FormatError: Keys or signatures are none, double, out of order, or too many.
        """
        if not 0 < len(self.signatures) <= MOST_KEYS:
            raise FormatError(f"a release of an image is signed by 1 to {MOST_KEYS} keys")
        for key, signature in self.signatures:
            if type(key) is not bytes or type(signature) is not bytes:
                raise FormatError("a signature of a release is a key and a signature")
            if (len(key), len(signature)) != (_KEY, SIGNATURE_SIZE):
                raise FormatError("a signature of a release is a key and a signature")
        keys = [key for key, _ in self.signatures]
        if sorted(set(keys)) != keys:
            raise FormatError("the signatures of a release are not of different keys in ascending order")

    def signers(self) -> list[bytes]:
        """Returns the keys that signed, ascending.

        Raises:
            SealedWorkerError: A signature is not its key's (`sealed.image.endorsement`).
        """
        message = _DOMAIN + cbor(self.release.fields)
        for key, signature in self.signatures:
            if not signed_by(key, message, signature):
                raise unendorsed(f"the signature of {key.hex()} is not over this release")
        return [key for key, _ in self.signatures]

    def to_cbor(self) -> bytes:
        """Returns the one encoding of this entry."""
        return cbor([*self.release.fields, [list(each) for each in self.signatures]])

    @classmethod
    def from_cbor(cls, data: bytes) -> Endorsed:
        """Reads an entry.

        Law: `from_cbor(e.to_cbor()) == e`; and where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            FormatError: The bytes are none.
        """
        if len(data) > ENTRY_LIMIT:
            raise FormatError("an entry of an image log is too large")
        match decode_cbor(data, max_depth=3, max_items=1024):
            case [measurement, version, processor, files, size, [*signatures]] if all(map(_is_pair, signatures)):
                release = Release(measurement=measurement, version=version, processor=processor, files=files, size=size)
                found = cls(release, tuple((each[0], each[1]) for each in signatures))
            case _:
                raise FormatError("an entry of an image log is not a release of five fields and its signatures")
        if found.to_cbor() != data:
            raise FormatError("an entry of an image log is not in its one encoding")
        return found


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def endorse(release: Release, key: SigningKey) -> Endorsed:
    """Signs a release."""
    return Endorsed(release, ((key.public, key.sign(_DOMAIN + cbor(release.fields))),))


def joined(endorsements: Iterable[Endorsed]) -> Endorsed:
    """Returns one entry with the signatures of all.

    Raises:
        UsageError: They are of different releases, or there are none.
        SealedWorkerError: A signature is not its key's (`sealed.image.endorsement`).
    """
    found = list(endorsements)
    for each in found:
        each.signers()
    if len({each.release for each in found}) != 1:
        raise UsageError("these endorsements are of different images; give those of one")
    return Endorsed(found[0].release, tuple(sorted({pair for each in found for pair in each.signatures})))


def unendorsed(why: str) -> SealedWorkerError:
    """Returns the error that says that an image is not endorsed."""
    return SealedWorkerError(f"{why}; run no such image", code="sealed.image.endorsement")
