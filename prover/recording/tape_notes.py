"""What is written down once for each tape of a recording: where undeclared tensors came from, and what is claimed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prover.capture.claimed_training import ClaimedTraining
from weighbridge.transcript.entry_notes import MOST, EntryNote
from weighbridge.transcript.training_claims import MOST as MOST_CLAIMS
from weighbridge.transcript.training_claims import Claims
from weighbridge.transcript.writer import TranscriptWriter


class TapeNotes:
    """The notes of one recording."""

    def __init__(
        self, noted: Iterable[bytes] = (), entries: Iterable[EntryNote] = (), claims: dict[bytes, Claims] | None = None
    ) -> None:
        """Goes on with what was noted before a crash: of which tapes, their entries, and the claims by tape."""
        self._noted, self._entries, self._claims = set(noted), list(entries), dict(claims or {})

    def entered(self, out: TranscriptWriter, tape: bytes, entries: Sequence[EntryNote]) -> None:
        """Writes where undeclared tensors came from, when a tape with some runs for the first time."""
        if entries and tape not in self._noted and len(self._entries) < MOST:
            self._noted.add(tape)
            self._entries += entries
            out.put_entered(self._entries)

    def training(self, out: TranscriptWriter, tape: bytes, claimed: ClaimedTraining | None) -> None:
        """Writes what is claimed of a tape's training, when it runs for the first time."""
        if claimed is None or tape in self._claims or len(self._claims) >= MOST_CLAIMS:
            return
        claims = claimed.claims()
        if claims is not None:
            self._claims[tape] = claims
            out.put_claims(self._claims)
