"""Transcripts that are valid in form and made without training.

`write_transcript` writes steps with snapshots, for those who pass transcripts on; `write_whole` writes every kind of
file, for the tests of reading, writing and recovering. Neither replays.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import bytes_digest
from weighbridge.numerics.rounding import rounding_log
from weighbridge.transcript.data import DataCommitment, OrderSeed
from weighbridge.transcript.resumption_notes import Resumption, encode
from weighbridge.transcript.returned_state import Returned
from weighbridge.transcript.state import Checkpoint, View, checkpoint_digest
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.writer import RESUMPTIONS, TranscriptWriter

RECORDS = [{"image": torch.full((3, 4), float(i)), "label": torch.tensor(i)} for i in range(8)]
VALUES = [1.0, 1, True, 0, False, 0.0, -0.0, float("inf"), float("-inf"), 5e-324, 2**64 - 1, -(2**63)]
TAPE = b"a tape"
UEID = b"\x01" + bytes(15) + b"\x07"
NO_TAPE = b"not a tape, but content all the same" * 50


def commitment() -> DataCommitment:
    return DataCommitment.over(RECORDS, OrderSeed(5, 2))


def state(step: int) -> Checkpoint:
    storages = {"a": torch.full((16,), step, dtype=torch.uint8), "b": torch.arange(8, dtype=torch.uint8)}
    views = [View("w", "a", "f32", (2, 2), (2, 1), 0), View("v", "b", "i16", (2,), (2,), 1)]
    return Checkpoint(step, storages, views, {"cpu": 4 * step})


def batch(ids: list[int]) -> dict[str, Tensor]:
    return {name: torch.stack([RECORDS[i][name] for i in ids]) for name in ("image", "label")} if ids else {}


def log(step: int) -> bytes:
    entries = rounding_log.OpEntries(
        step, 0, np.array([step, step + 9]), np.array([1, 2], dtype=np.uint8), np.array([1, 3], dtype=np.uint64)
    )
    return rounding_log.encode([entries])


def append(writer: TranscriptWriter, ids: list[int], **changes: Any) -> StepRecord:
    step = writer.steps
    fields: dict[str, Any] = {
        "kind": "step" if step else "init",
        "tape": writer.put_tape(TAPE),
        "values": VALUES,
        "host": [float("nan"), step],
        "rng": {"cpu": (4 * step, 4 * step + 4)},
        "state": checkpoint_digest(state(step + 1)),
        "checksums": step.to_bytes(8, "little") * 2,
        "rounding": log(step),
        "batch": batch(ids),
        "undeclared": {"scale": torch.tensor(0.5 * step)},
        "snapshots": [(b"\x01" * 17, 40 + step, 3)],
        "rounded": 100,
        "logged": 2,
    }
    return writer.append_step(**{**fields, **changes})


def start(
    path: Path, *, data: DataCommitment | None = None, key: SigningKey | None = None, **drafted: Any
) -> TranscriptWriter:
    draft = {"name": "small", "seed": 7, **drafted}
    return TranscriptWriter(path, draft=draft, key=key or SigningKey.generate(), data=data, segment_steps=2)


def write_whole(path: Path, *, steps: int = 4, data: bool = True, close: bool = True) -> TranscriptWriter:
    """Writes step 0, checkpoint 1 and `steps` training steps of two records each."""
    committed = commitment() if data else None
    writer = start(path, data=committed)
    append(writer, [])
    writer.checkpoint(state(1))
    ids = commitment().ids().tolist()
    for step in range(steps):
        append(writer, ids[2 * step : 2 * step + 2])
    if close:
        writer.close()
    return writer


def write_transcript(
    path: Path,
    *,
    name: str = "small",
    steps: int = 3,
    ueid: bytes = UEID,
    tape: bytes = NO_TAPE,
    resumptions: Sequence[Resumption] = (),
    draft: Mapping[str, Any] | None = None,
    returned: Returned | None = None,
) -> str:
    """Writes a transcript in which the chip took snapshot 10 + t at operation 4 of step t; returns its identifier."""
    writer = TranscriptWriter(path, draft={"name": name, **(draft or {})}, key=SigningKey.generate(), segment_steps=2)
    program = writer.put_tape(tape)
    if resumptions:
        writer._placed.put(RESUMPTIONS, encode(resumptions))
    if returned is not None:
        writer.put_returned(returned)
    for step in range(steps):
        writer.append_step(
            kind="step" if step else "init",
            tape=program,
            values=[0.5],
            host=[],
            rng={},
            state=bytes_digest(bytes([step])),
            checksums=b"",
            rounding=b"log",
            batch={"x": torch.arange(8) + step} if step else {},
            snapshots=[(ueid, 10 + step, 4)],
        )
    return writer.close()
