"""Which undeclared tensors are the run's own state of an earlier step, as the transcript itself proves."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import TranscriptError
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tensor_file import raw_bytes


def returned(transcript: Transcript) -> Mapping[tuple[int, str], tuple[int, str]]:
    """Returns which undeclared tensors hold state of an earlier step; all that a transcript claims is compared.

    Left out is what it claims of steps that it does not have: a loss of power may have taken them away.

    Args:
        transcript: A verified transcript.

    Returns:
        (Step, name of the undeclared tensor) to (earlier step, storage): it holds what that storage held before that.

    Raises:
        TranscriptError: One does not (`transcript.returned.differs`).
    """
    claims = transcript.returned
    tensors = {entered: source for entered, source in claims.tensors.items() if entered[0] < transcript.steps}
    for step in {before for before, _ in tensors.values()}:
        if claims.states[step].digest() != transcript.step(step - 1).state:
            raise _differs(f"the table of the state before step {step} does not give the digest that its record has")
    undeclared: tuple[int, Mapping[str, Tensor]] = (-1, {})
    for (step, name), (before, storage) in tensors.items():
        if undeclared[0] != step:
            undeclared = step, transcript.undeclared(step)
        raw = raw_bytes(undeclared[1][name]) if name in undeclared[1] else None
        if raw is None or claims.states[before].storages.get(storage) != (len(raw), bytes_digest(raw)):
            raise _differs(f"the tensor {name} of step {step} is not what {storage!r} held before step {before}")
    return tensors


def _differs(message: str) -> TranscriptError:
    return TranscriptError(f"{message}; ask the Prover where that tensor came from", code="transcript.returned.differs")
