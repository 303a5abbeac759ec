"""What recognising a step may take: a Prover's claims and programs decide how long it lasts and how large it gets."""

from __future__ import annotations

import time

import torch

from weighbridge.core.errors import WeighbridgeError

LEAST_SECONDS = 60.0
MOST_REPLAYS = 8.0
"""A step is recognised in a minute, or in so many times what its replay took; honest ones take less than one."""


class UnfinishedError(WeighbridgeError):
    """A step could not be looked at to the end, which says nothing of it; the message says why."""

    code = "recognition.unknown"


def until(replayed: float) -> float:
    """Returns when to give up a step whose replay took so many seconds, by `time.perf_counter`."""
    return time.perf_counter() + max(LEAST_SECONDS, MOST_REPLAYS * replayed)


def check_time(until: float) -> None:
    """Raises `UnfinishedError` if it is later than that, by `time.perf_counter`."""
    if time.perf_counter() > until:
        raise UnfinishedError("to recognise the step takes far longer than to replay it, so it was given up")


def unfinished(error: Exception) -> UnfinishedError | None:
    """Returns what to say instead of an error that only a larger machine would not have met; None of another error."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error):
        return UnfinishedError("to recognise the step takes more memory than there is")
    return None
