"""What the transcript is told of a step that was captured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from prover.capture.in_progress import InProgress
from prover.recording.step_runner import StepRunner
from weighbridge.transcript.parentage import Parent
from weighbridge.transcript.writer import TranscriptWriter


def append(
    out: TranscriptWriter,
    capture: InProgress,
    steps: StepRunner,
    *,
    kind: Literal["init", "step", "edit"],
    tape: bytes,
    records: Sequence[int] | None,
    snapshots: Sequence[tuple[bytes, int, int]],
    parent: Parent | None,
) -> None:
    """Appends a step to a transcript.

    Args:
        out: The transcript.
        capture: The step.
        steps: What ran it.
        kind: Of the step.
        tape: Digest of its tape.
        records: Its records of the committed data, if the program says them.
        snapshots: Those that the chip took in it: (its UEID, log index, operations complete).
        parent: What step 0 was found to go on from.
    """
    context = capture.context
    out.append_step(
        kind=kind,
        tape=tape,
        values=capture.values,
        host=context.hosts,
        rng={str(number): pair for number, pair in context.rng.items()},
        state=steps.state.digest(),
        checksums=np.array(context.checksums, dtype="<u8").tobytes(),
        rounding=context.rounding(),
        batch={name: copy.tensor() for name, copy in steps.batch.items()},
        undeclared={name: copy.tensor() for name, copy in capture.undeclared.items()},
        records=records,
        snapshots=snapshots,
        rounded=context.rounded_elements,
        logged=context.log.entries,
        collectives=context.collectives,
        formulas=list(steps.derived.declared.items()) if kind == "init" else (),
        counts=steps.counts,
        outputs=b"" if context.outputs is None else context.outputs.digest(),
        sketches=int(context.sketches is not None),
        parent=parent.to_map() if parent is not None and kind == "init" else None,
    )
