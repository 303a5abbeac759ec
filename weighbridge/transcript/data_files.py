"""The data commitment of a transcript: how it is read, and whether a step's records are those that it names."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

from weighbridge.core import digests
from weighbridge.core.bounded import Limits, read_file
from weighbridge.core.errors import Finding, TranscriptError
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.writer import LEAVES, ORDER


def read_commitment(root: Path, listed: Container[str], summary: Any, limits: Limits) -> DataCommitment | None:
    """Reads the commitment that a transcript's draft names, if it names one.

    Args:
        root: The transcript's directory.
        listed: The files that its manifest lists.
        summary: What the draft says of the data.
        limits: On the sizes of files.

    Raises:
        TranscriptError: The files are missing, or others than the draft names.
    """
    present = {path for path in (LEAVES, ORDER) if path in listed}
    if summary is None and not present:
        return None
    if present != {LEAVES, ORDER}:
        raise TranscriptError("data/ does not hold what the draft calls for; fetch the transcript again")
    leaves = read_file(root / LEAVES, max_bytes=limits.file)
    order = read_file(root / ORDER, max_bytes=limits.file)
    match summary:
        case {"order": {"seed": int(seed), "epochs": int(epochs)}} | {
            "order": {"random": bytes(seed), "epochs": int(epochs)}
        } if len(order) * 4 == len(leaves) * epochs:
            data = DataCommitment.from_parts(leaves, (seed, epochs))
        case _:
            data = DataCommitment.from_parts(leaves, order)
    if digests.cbor(data.summary()) != digests.cbor(summary) or data.order_bytes() != order:  # 1 == True == 1.0
        raise TranscriptError("data/ is not the commitment that the draft names; fetch the transcript again")
    return data


def compare(record: StepRecord, data: DataCommitment, expected: list[int]) -> list[Finding]:
    """Compares the records of one step with the commitment, which expects those with the ids `expected`."""
    findings, subject = [], f"step {record.step}"
    if record.records != expected:
        findings.append(
            Finding(
                id="data.order.differs",
                message=f"Step {record.step} uses other records than the committed order says.",
                expected=str(expected[:16]),
                found=str(record.records[:16]),
                subject=subject,
            )
        )
    for identity, digest in zip(record.records, record.record_digests, strict=False):
        known = data.leaf(identity).hex() if identity < len(data) else "no such record"
        if known != digest.hex():
            findings.append(
                Finding(
                    id="data.record.differs",
                    message=f"Record {identity} in step {record.step} is not the one that was committed to.",
                    expected=known,
                    found=digest.hex(),
                    subject=subject,
                )
            )
            break
    return findings
