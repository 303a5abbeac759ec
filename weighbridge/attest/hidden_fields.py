"""What tokens of a confidential boot hide: commitments in place of fields, and what opens them.

Such a token shows its kind, its place in the log, its times and the chip's identity. What the workload did and claimed
stands in it as one commitment of 32 bytes, whatever it is: of a boot entry and of the chip's own events the counters of
work, of every other event and of snapshots also the body. The commitment is blinded with 32 fresh random bytes, so that
no party confirms a guess by it, and it names the chip, the boot and the index, so that it opens one token alone. A head
has no counters there: it is signed for each party that asks, and the next entry has them.

docs/formats/snapshot-token.md has the bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from weighbridge.attest.tokens import HIDING, HiddenBody, Token, Value, decode_cbor, encode_claims, is_own
from weighbridge.attest.work import Work
from weighbridge.core.digests import cbor, record_digest
from weighbridge.core.errors import FormatError, TokenError, WeighbridgeError

BLINDING_SIZE = 32
OPENING_LIMIT = 1 << 12
"""So many bytes what opens one token may have; an event's name has at most 100 characters."""

MISMATCH, WITHHELD = "chip.hidden.mismatch", "chip.hidden.withheld"


@dataclass(frozen=True, kw_only=True, slots=True)
class HiddenFields:
    """What opens one token.

    Attributes:
        blinding: 32 random bytes.
        work: What the chip had done over its life.
        body: The body; None if the token shows it.
    """

    blinding: bytes
    work: Work
    body: Mapping[str, Value] | None

    def to_cbor(self) -> bytes:
        """Returns the one encoding."""
        return cbor({"blinding": self.blinding, "fields": self._fields()})

    @classmethod
    def from_cbor(cls, data: bytes) -> HiddenFields:
        """Reads what opens a token.

        Law: `from_cbor(h.to_cbor()) == h`; and where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            FormatError: The bytes are not such an encoding.
        """
        try:
            match decode_cbor(data, max_bytes=OPENING_LIMIT):
                case {"blinding": bytes(blinding), "fields": dict(fields), **rest} if not rest:
                    body = fields.pop("body", None)
                    work = Work.from_json(fields.pop("work"))
                case _:
                    raise FormatError("what opens a token is a map of blinding and fields")
            found = cls(blinding=blinding, work=work, body=body)
            exact = not fields and len(blinding) == BLINDING_SIZE and found.to_cbor() == data
        except FormatError:
            raise
        except (WeighbridgeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise FormatError(f"what opens a token is malformed ({type(error).__name__})") from None
        if not exact or not _is_body(body):
            raise FormatError("what opens a token is not in its one encoding")
        return found

    def commitment(self, ueid: bytes, boot_count: int, index: int) -> bytes:
        """Returns the commitment (32 bytes) in the token of one chip, boot and index."""
        return record_digest("hidden-token/1", [self.blinding, ueid, boot_count, index, cbor(self._fields())])

    def _fields(self) -> dict[str, Any]:
        body = {} if self.body is None else {"body": dict(self.body)}
        return {"work": self.work.to_json(), **body}


def hide(token: Token) -> tuple[Token, bytes]:
    """Returns what a chip signs in place of an entry in a confidential boot, and what opens it.

    Law: `reveal(*hide(token)) == token` for every entry that says what the chip has done.

    Raises:
        TokenError: A claim is outside its range: afterwards no signature could tell.
    """
    assert isinstance(token.work, Work)
    assert not isinstance(token.body, HiddenBody)
    encode_claims(token)
    whole = hides_body(token)
    fields = HiddenFields(
        blinding=secrets.token_bytes(BLINDING_SIZE), work=token.work, body=token.body if whole else None
    )
    hidden = HiddenBody(fields.commitment(token.ueid, token.boot_count, token.index))
    return replace(token, work=hidden, body=hidden if whole else token.body), fields.to_cbor()


def hides_body(token: Token) -> bool:
    """Tells whether a confidential boot hides the body of an entry, or has hidden it: all but the chip's own events."""
    return token.kind in HIDING and not is_own(token)


def reveal(token: Token, opening: bytes) -> Token:
    """Returns the token with the fields that it hides.

    Args:
        token: One that hides fields.
        opening: What is said to open it; hostile.

    Raises:
        TokenError: It does not open this token, or the fields are none of its kind (`chip.hidden.mismatch`).
    """
    assert isinstance(token.work, HiddenBody)
    whole = isinstance(token.body, HiddenBody)
    try:
        fields = HiddenFields.from_cbor(opening)
        if fields.commitment(token.ueid, token.boot_count, token.index) != token.work.commitment:
            raise TokenError("it is not what the chip committed to")
        if (fields.body is not None) != whole:
            raise TokenError("the chip committed to other fields than the token hides")
        found = replace(token, work=fields.work, body=token.body if fields.body is None else fields.body)
        encode_claims(found)
        if whole and is_own(found):
            raise TokenError("it hides one of the chip's own events")
    except (FormatError, TokenError) as error:
        raise TokenError(f"Entry {token.index} is not opened: {error.message}", code=MISMATCH) from None
    return found


def _is_body(body: object) -> bool:
    return body is None or (
        isinstance(body, dict)
        and all(type(name) is str and type(value) in (bytes, int, str, bool) for name, value in body.items())
    )
