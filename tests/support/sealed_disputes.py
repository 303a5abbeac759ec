"""What parties to sealed disputes give and sign, for tests: with and without lies."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support.disputed import STEP, Party

from weighbridge.attest.manifest import SigningKey
from weighbridge.attest.sealed_channel import ProverKey
from weighbridge.attest.sealed_dispute import Admission, DisputeTerms, Seat, subject_commitment, subject_of
from weighbridge.attest.sealed_list import SealedList, commitment
from weighbridge.execution.dispute import moves, sealed_files
from weighbridge.execution.dispute.messages import Challenge

SITE = b"\x01" * 17


def claim_of(party: Party, *, own: bool = True) -> Challenge:
    """Returns what a party claims of the disputed step."""
    return moves.challenge(party.tree()[0], STEP, own=own)


@dataclass
class Setting:
    """Two parties with keys, and the terms of their dispute.

    Attributes:
        terms: What they agreed on.
        subject: What opens the step.
        signing: The keys that the terms name.
        channel: Their keys of sealed jobs.
    """

    signing: tuple[SigningKey, SigningKey] = field(
        default_factory=lambda: (SigningKey.generate(), SigningKey.generate())
    )
    channel: tuple[ProverKey, ProverKey] = field(
        default_factory=lambda: (ProverKey(os.urandom(32)), ProverKey(os.urandom(32)))
    )
    changed: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.subject = subject_of(STEP, os.urandom(32))
        made = DisputeTerms(
            dispute="gpt2", attempt=0, challenger=self.signing[0].public, defender=self.signing[1].public,
            subject=subject_commitment(self.subject), measurement=bytes(48), site=SITE, clock_s=30, leaves_after_s=90,
            shows_class=False, dispute_bits=30, year_bits=100,
        )  # fmt: skip
        self.terms = replace(made, **self.changed)

    def given(self, out: Path, run: Path, claim: Challenge) -> Path:
        """Gathers what a party gives."""
        sealed_files.gather(out, run, claim, self.subject)
        return out

    def seat(self, number: int, files: SealedList) -> Seat:
        """Takes a party's seat."""
        return Seat.take(
            self.terms, self.signing[number], nonce=os.urandom(32), key=self.channel[number].public,
            commitment=commitment(files.to_cbor()),
        )  # fmt: skip

    def admission(self, challenger: Seat, defender: Seat) -> Admission:
        """Returns what a worker hears first."""
        return Admission(terms=self.terms.to_cbor(), challenger=challenger.to_cbor(), defender=defender.to_cbor())


COURT = Setting()
"""Two parties and their terms, for tests of what is signed."""
