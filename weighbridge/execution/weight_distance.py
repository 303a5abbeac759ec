"""How far the weights of a run moved between two checkpoints, by the checkpoints alone; nothing is executed.

This reads a Prover's checkpoints, so it runs in a confined worker. What the distances say is for the reader of the
answer to judge.
"""

from __future__ import annotations

import math

import torch

from weighbridge.core.errors import WeighbridgeError
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import Checkpoint
from weighbridge.transcript.tensor_file import DTYPES


def distances(transcript: Transcript) -> dict[int, dict[str, float]]:
    """Returns the relative change of each weight in each segment between two checkpoints that are here.

    Which tensors are weights is the Prover's word: those in `chips.cbor`, or else everything attached as a module.

    Returns:
        First step of the segment, to name, to relative change: the norm of the difference over the larger of the two
        norms; infinite if it is no number. The empty name stands for all weights together.
    """
    found: dict[int, dict[str, float]] = {}
    before: Checkpoint | None = None
    for at in (step for step in transcript.manifest.checkpoints if step > 0):
        after = _read(transcript, at)
        if before is not None and after is not None:
            found[before.step] = _compare(transcript, before, after)
        before = after
    return found


def _read(transcript: Transcript, step: int) -> Checkpoint | None:
    if step not in transcript.checkpoint_steps:
        return None
    try:
        return transcript.checkpoint(step)
    except WeighbridgeError:
        return None  # the replay of this segment says so


def _compare(transcript: Transcript, before: Checkpoint, after: Checkpoint) -> dict[str, float]:
    old, new = _weights(transcript, before), _weights(transcript, after)
    found: dict[str, float] = {}
    moved = size = 0.0
    for name in sorted(old.keys() & new.keys()):
        a, b = old[name], new[name]
        if a.shape != b.shape:
            continue
        distance, norm = float((a - b).norm()) ** 2, max(float(a.norm()), float(b.norm())) ** 2
        found[name] = _share(distance, norm)
        moved, size = moved + distance, size + norm
    found[""] = _share(moved, size)
    return found


def _weights(transcript: Transcript, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    notes = transcript.notes
    weights: dict[str, torch.Tensor] = {}
    for view in checkpoint.views:
        named = view.storage in notes.weights if notes is not None else view.name.startswith("model")
        dtype, elements = DTYPES[view.dtype], math.prod(view.size)
        if not named or not dtype.is_floating_point or view.name.endswith(".grad"):
            continue
        if elements * dtype.itemsize <= checkpoint.storages[view.storage].numel():
            weights[view.name] = view.tensor(checkpoint.storages).double()
    return weights


def _share(moved: float, size: float) -> float:
    if not (math.isfinite(moved) and math.isfinite(size)):
        return math.inf
    return math.sqrt(moved / size) if size > 0 else 0.0
