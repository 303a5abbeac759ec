"""Stores each tape of a recording once, after a trial that a replay will accept it."""

from __future__ import annotations

from typing import Any

from weighbridge.core.errors import TapeError
from weighbridge.program.invocation import Trial
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.writer import TranscriptWriter

_RECENT = 4


class TapeStore:
    """Remembers the tapes stored last."""

    def __init__(self) -> None:
        self._recent: list[tuple[Tape, bytes]] = []
        self._try: Trial | None = Trial()

    def trust(self) -> None:
        """Tries no tape out any more: what is recorded is going to be thrown away."""
        self._try = None

    def put(self, out: TranscriptWriter, tape: Tape, values: list[Any], step: int) -> bytes:
        """Stores a tape and returns its digest; steps often repeat a recent tape, which costs less to compare.

        A new one is read again and tried out first: a Prover should not learn from a Verifier that an honest transcript
        is malformed.

        Args:
            out: The transcript.
            tape: The tape.
            values: The numbers that it was recorded with.
            step: The step that made it.

        Raises:
            TapeError: It could not be replayed.
        """
        for known, digest in self._recent:
            if known == tape:
                return digest
        data = tape.encode()
        try:
            if self._try is not None:
                self._try(Tape.decode(data), values)
        except TapeError as error:
            raise TapeError(
                f"the tape of step {step} could not be replayed: {error.message}; shorten names of the "
                "batch if they are long, else this is a fault of the Recorder. The transcript ends with the step before"
            ) from None
        digest = out.put_tape(data)
        self._recent = [(tape, digest), *self._recent[: _RECENT - 1]]
        return digest
