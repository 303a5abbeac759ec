"""What a transcript is written from: the journal of the open segment, a file for each step, and copies of the state.

Functions here may run beside the program that records: they touch nothing but the files that they are about.
"""

from __future__ import annotations

from pathlib import Path

from weighbridge.core.errors import UsageError
from weighbridge.transcript.placing import Files
from weighbridge.transcript.state import Checkpoint, checkpoint_digest, write_checkpoint
from weighbridge.transcript.steps import (
    StepRecord,
    batches_path,
    checkpoint_path,
    pack_logs,
    pack_records,
    rounding_path,
    steps_path,
)
from weighbridge.transcript.tensor_file import TensorFile, write_tensors

JOURNAL = "journal"


def journal_path(step: int) -> str:
    """Returns the relative path of the journal file of one step of the open segment."""
    return f"{JOURNAL}/{step:08d}.safetensors"


def end_segment(files: Files, root: Path, steps: list[int]) -> None:
    """Turns the journal of a segment's steps into its three files, and makes these durable.

    Args:
        files: Where they are placed.
        root: The transcript's directory.
        steps: Numbers of the steps.
    """
    first = steps[0]
    records, logs, tensors = [], [], {}
    for step in steps:
        journal = TensorFile(root / journal_path(step))
        records.append(StepRecord.from_cbor(journal.read("record").numpy().tobytes()))
        logs.append(journal.read("rounding").numpy().tobytes())
        tensors.update({f"{step}/{name}": journal.read(name) for name in journal if "/" in name})
    files.publish(batches_path(first), lambda file: write_tensors(file, tensors))
    files.put(rounding_path(first), pack_logs(logs))
    # The steps file comes last: where it is, the segment is whole.
    files.put(steps_path(first), pack_records(records))
    files.flush()  # which ends the segment, whatever becomes of the journal: `close` and `recover` remove what is left
    files.remove(journal_path(step) for step in steps)


def put_checkpoint(files: Files, checkpoint: Checkpoint, state: bytes | None) -> None:
    """Stores a state and makes it durable.

    Args:
        files: Where it is placed.
        checkpoint: The state.
        state: The digest that the record of the step before names, if there is one.

    Raises:
        UsageError: It is another state.
    """
    step = checkpoint.step
    if state is not None and checkpoint_digest(checkpoint) != state:
        raise UsageError(f"checkpoint {step} is not the state after step {step - 1}; store that state")
    files.publish(checkpoint_path(step), lambda file: write_checkpoint(file, checkpoint))
    files.flush()
