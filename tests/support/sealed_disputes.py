"""What parties to sealed disputes give and sign, for tests: with and without lies."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support.disputed import STEP, Party
from support.forging import forge

from weighbridge.attest.manifest import SigningKey
from weighbridge.attest.sealed_channel import ProverKey
from weighbridge.attest.sealed_dispute import Admission, DisputeTerms, Seat
from weighbridge.attest.sealed_list import SealedList, commitment
from weighbridge.attest.sealed_subject import Subject
from weighbridge.core.bounded import DEFAULT_LIMITS
from weighbridge.execution.dispute import moves, sealed_files
from weighbridge.execution.dispute.messages import Challenge
from weighbridge.transcript.files import read_manifest
from weighbridge.transcript.tape import Tape

SITE = b"\x01" * 17


def claim_of(party: Party, *, own: bool = True) -> Challenge:
    """Returns what a party claims of the disputed step."""
    return moves.challenge(party.tree()[0], STEP, own=own)


def fitting(run: Path, target: Path, liar: Party, **options: Any) -> Path:
    """Writes a run again with a liar's record of the disputed step, signed, and returns where."""

    def change(step: int, _: Tape, fields: dict[str, Any]) -> None:
        if step == STEP:
            assert liar.record is not None
            for name in ("checksums", "host", "state"):
                fields[name] = getattr(liar.record, name)

    return forge(run, target, change, **options)


@dataclass
class Setting:
    """Two parties with keys, and the terms of their dispute.

    Attributes:
        runs: The transcripts that challenger and defender stand by; none for what is signed alone.
        terms: What they agreed on.
        subject: What opens the step and the transcripts.
        signing: The keys that the terms name.
        channel: Their keys of sealed jobs.
    """

    runs: tuple[Path, Path] | None = None
    signing: tuple[SigningKey, SigningKey] = field(
        default_factory=lambda: (SigningKey.generate(), SigningKey.generate())
    )
    channel: tuple[ProverKey, ProverKey] = field(
        default_factory=lambda: (ProverKey(os.urandom(32)), ProverKey(os.urandom(32)))
    )
    changed: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = [(bytes([party]) * 32, each.public) for party, each in enumerate(self.signing)]
        if self.runs is not None:
            found = [read_manifest(each, DEFAULT_LIMITS) for each in self.runs]
            named = [(bytes.fromhex(each.digest), each.public) for each in found]
        (one, signer), (other, others) = named
        agreed = Subject(step=STEP, blind=os.urandom(32), challenger=one, defender=other)
        self.subject = agreed.to_bytes()
        made = DisputeTerms(
            dispute="gpt2", attempt=0, challenger=self.signing[0].public, defender=self.signing[1].public,
            challenger_signer=signer, defender_signer=others, subject=agreed.commitment, measurement=bytes(48),
            site=SITE, clock_s=30, inputs=1 << 26, memory=1 << 28, run_s=60, leaves_after_s=180, shows_class=False,
            dispute_bits=30, year_bits=100,
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
