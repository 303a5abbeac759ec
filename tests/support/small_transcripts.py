"""Small transcripts for tests: valid in form, made without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from weighbridge.digests import bytes_digest
from weighbridge.manifest import SigningKey
from weighbridge.resumption import Resumption, encode
from weighbridge.writer import RESUMPTIONS, TranscriptWriter

UEID = b"\x01" + bytes(15) + b"\x07"


NO_TAPE = b"not a tape, but content all the same" * 50


def write_transcript(
    path: Path,
    *,
    name: str = "small",
    steps: int = 3,
    ueid: bytes = UEID,
    tape: bytes = NO_TAPE,
    resumptions: Sequence[Resumption] = (),
    draft: Mapping[str, Any] | None = None,
) -> str:
    """Writes a transcript in which the chip took snapshot 10 + t at operation 4 of step t; returns its identifier."""
    writer = TranscriptWriter(path, draft={"name": name, **(draft or {})}, key=SigningKey.generate(), segment_steps=2)
    program = writer.put_tape(tape)
    if resumptions:
        writer._publish(RESUMPTIONS, lambda file: file.write_bytes(encode(resumptions)))
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
