"""The Prover: records training runs and keeps their transcripts."""

from prover.recorder import Recorder

__all__ = ["Recorder"]
