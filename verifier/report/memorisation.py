"""Did the weights learn in a segment what the transcript says they were shown there? Evidence without a replay.

A model remembers its latest batches better than others of the same kind (Choi, Shavit and Duvenaud 2023). So from the
checkpoint before a segment to the one after it, the loss of the segment's own batches falls further than that of
batches that came later. Where a Prover names other data than it trained on, it does not. Two checkpoints and a few
forward passes are enough, which makes it cheap where nothing is replayed; but it is a statistical test: large data
sets and small learning rates leave little to see. So a p-value is reported, and never a violation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript

Losses = Callable[[Sequence[int], Sequence[int]], list[list[float]]]
"""Evaluates the batches of some steps (columns) at some checkpoints (rows)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What one segment's weights remember.

    Attributes:
        begin: The segment's first step.
        end: The step after its last one.
        own: How far the loss of each of its own batches fell over the segment, in nats.
        control: The same of batches that came later.
        auc: How often an own batch fell further than one that came later; a half if the segment taught nothing.
        p: How likely as much is if it taught nothing of its own batches (Mann and Whitney, one-sided).
    """

    begin: int
    end: int
    own: tuple[float, ...]
    control: tuple[float, ...]
    auc: float
    p: float

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data with every field."""
        return {**asdict(self), "own": list(self.own), "control": list(self.control)}


def compare(own: Sequence[float], control: Sequence[float]) -> tuple[float, float]:
    """Returns (AUC, p) of falls in loss of own batches against those of other batches.

    Args:
        own: At least one.
        control: At least one.
    """
    from scipy.stats import mannwhitneyu  # noqa: PLC0415 (takes a second)

    found = mannwhitneyu(np.asarray(own), np.asarray(control), alternative="greater")
    return float(found.statistic) / (len(own) * len(control)), float(found.pvalue)


def remember(transcript: OpenedTranscript, begin: int, end: int, losses: Losses) -> Memory | WeighbridgeError | None:
    """Tests one segment.

    Args:
        transcript: A verified transcript.
        begin: The segment's first step.
        end: The step after its last one.
        losses: Evaluates losses.

    Returns:
        What was found; why it could not be; or None if there is nothing to compare, or no checkpoint.
    """
    if not {begin, end} <= set(transcript.checkpoint_steps):
        return None
    try:
        own, control = transcript.comparable(begin, end)
        if not own:
            return None
        before, after = losses((begin, end), (*own, *control))
    except WeighbridgeError as error:
        return error
    fell = [a - b for a, b in zip(before, after, strict=True)]
    auc, p = compare(fell[: len(own)], fell[len(own) :])
    return Memory(
        begin=begin, end=end, own=tuple(fell[: len(own)]), control=tuple(fell[len(own) :]), auc=auc, p=p
    )  # fmt: skip
