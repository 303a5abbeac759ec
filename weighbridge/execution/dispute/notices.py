"""A challenger's notice: for which referee and against whom a challenge is, so that no other one can be made of it."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import DIGEST_SIZE, cbor, record_digest
from weighbridge.core.errors import FormatError
from weighbridge.execution.dispute.messages import DisputeError

MAX_NOTICE = 1024
"""Most bytes of a notice."""

_SIGNED = b"weighbridge/dispute-notice/1\x00"
_SIGNATURE_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Notice:
    """What accompanies a challenge.

    Attributes:
        referee: Raw public key of the referee that is to rule (32 bytes).
        defender: Raw public key of the party that is to answer (32 bytes).
        challenge: Head of the challenge (32 bytes).
    """

    referee: bytes
    defender: bytes
    challenge: bytes

    def signed(self, key: SigningKey) -> bytes:
        """Returns the notice as it travels, signed with the challenger's key."""
        return self._written(key.sign(_SIGNED + self._digest()))

    @classmethod
    def read(cls, data: bytes, challenger: bytes) -> Notice:
        """Reads a notice and verifies its signature.

        Args:
            data: As it travels.
            challenger: Raw public key of the one that signed the challenge.

        Raises:
            FormatError: It is no notice.
            DisputeError: The challenger did not sign it.
        """
        if len(data) > MAX_NOTICE:
            raise FormatError(f"A notice of {len(data)} bytes is larger than {MAX_NOTICE}; it is not read.")
        match decode_cbor(data, max_depth=1, max_items=8):
            case [bytes(referee), bytes(defender), bytes(challenge), bytes(signature)]:
                found = cls(referee=referee, defender=defender, challenge=challenge)
            case _:
                raise FormatError("A notice must be three digests and a signature; ask for it again.")
        if {len(referee), len(defender), len(challenge)} != {DIGEST_SIZE} or len(signature) != _SIGNATURE_SIZE:
            raise FormatError("A key, a head or the signature of a notice has another size; ask for it again.")
        if found._written(signature) != data:
            raise FormatError("A notice is not in its one encoding; ask for it again.")
        try:
            Ed25519PublicKey.from_public_bytes(challenger).verify(signature, _SIGNED + found._digest())
        except (InvalidSignature, ValueError):
            raise DisputeError("The challenger did not sign this notice; sign one for this referee.") from None
        return found

    def _digest(self) -> bytes:
        return record_digest("dispute-notice/1", [self.referee, self.defender, self.challenge])

    def _written(self, signature: bytes) -> bytes:
        return cbor([self.referee, self.defender, self.challenge, signature])
