"""What a sealed dispute is about: a step, and the signed transcript that each party stands by; the parties' secret.

Digests of manifests confirm guesses, as a step's number does. So the terms of a dispute have one commitment to all of
it, under 32 random bytes, and the parties and the worker alone have what opens that. A party that brings another run
than the one that both agreed on forfeits: the manifest of what it gives has another digest.

Where the challenger has a copy of the defender's run, both stand by the same transcript. Only finished transcripts can
be disputed, here as elsewhere: a recording that goes on has no manifest, and nothing binds its party to it.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from blake3 import blake3

from weighbridge.attest.sealed_dispute import PARTIES, DisputeTerms, Party
from weighbridge.core.errors import UsageError

SUBJECT_SIZE = 8 + 32 * (1 + len(PARTIES))
"""So many bytes what opens a subject has: the step (eight bytes, big-endian), 32 random bytes, and the digest of the
challenger's manifest and of the defender's (32 bytes each)."""

_DOMAIN = b"weighbridge/sealed-subject/1\x00"
_STEPS_END = 1 << 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What is disputed.

    Attributes:
        step: The step.
        blind: 32 random bytes.
        challenger: Digest of the manifest of the transcript that the challenger stands by (32 bytes).
        defender: Likewise the defender.
    """

    step: int
    blind: bytes
    challenger: bytes
    defender: bytes

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: There is no such step, or a field has not its size.
        """
        if not 0 <= self.step < _STEPS_END or any(len(each) != 32 for each in (self.blind, *self._transcripts())):
            raise UsageError("a dispute is about a step of two transcripts, under 32 random bytes")

    def _transcripts(self) -> tuple[bytes, bytes]:
        return self.challenger, self.defender

    def transcript_of(self, party: Party) -> bytes:
        """Returns the digest of the manifest of the transcript that a party stands by (32 bytes)."""
        return self.challenger if party == "challenger" else self.defender

    def to_bytes(self) -> bytes:
        """Returns what opens the subject."""
        return self.step.to_bytes(8, "big") + self.blind + b"".join(self._transcripts())

    @property
    def commitment(self) -> bytes:
        """The commitment that terms have (32 bytes): without the random bytes no guess is confirmed."""
        return blake3(_DOMAIN + self.to_bytes()).digest()

    @classmethod
    def opened(cls, data: bytes, terms: DisputeTerms) -> Subject | None:
        """Returns the subject that the terms commit to; None if this does not open it.

        Law: where it returns one, its `to_bytes()` is `data`.
        """
        if len(data) != SUBJECT_SIZE or int.from_bytes(data[:8], "big") >= _STEPS_END:
            return None
        step, fields = int.from_bytes(data[:8], "big"), [data[at : at + 32] for at in range(8, SUBJECT_SIZE, 32)]
        found = cls(step=step, blind=fields[0], challenger=fields[1], defender=fields[2])
        return found if hmac.compare_digest(found.commitment, terms.subject) else None
