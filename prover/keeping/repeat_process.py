"""The process that repeats a segment of a recording that goes on: `python -m prover.keeping.repeat_process`.

It closes a copy of what is whole of the recording, makes the rounding logs of the segment, and says what the chip is to
log of them. Of a rank of a job it makes those of all ranks (`prover.keeping.job_repeats`). The first line of stdin is
the request; it ends with its stdin.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from prover.keeping import job_repeats
from prover.keeping.unfinished_recordings import close_copy
from weighbridge.attest.manifest import load_or_create_key
from weighbridge.attest.repeats import commitment
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.execution.regeneration import regenerate
from weighbridge.transcript.job_record import MeshCoordinate
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import read_statement, supplement_name

ABANDONED = 3
"""Exit code when stdin ended first."""


def main() -> None:
    """Answers one request: paths `run`, `key` and `out`, `steps`, the running head `after` them in hex, `wait_s`."""
    asked = json.loads(sys.stdin.buffer.readline())
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints goes to stderr
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    told: dict[str, Any]
    try:
        told = {"commitment": repeat(**asked).hex()}
    except (WeighbridgeError, OSError) as error:
        told = {"error": str(error)}
    answer.write(json.dumps(told).encode())
    answer.close()


def repeat(*, run: str, key: str, out: str, steps: tuple[int, int], after: str, wait_s: float) -> bytes:
    """Makes the supplements of a segment; returns the commitment to its logs.

    Args:
        run: The recording.
        key: File with its key.
        out: Directory for the supplements.
        steps: (first, last + 1).
        after: Running head after them.
        wait_s: How long other ranks of a job are waited for.

    Raises:
        UsageError: The recording changes too fast to be copied, or has other steps there; or another rank's is missing.
        WeighbridgeError: As `regenerate` and `regenerate_job`.
    """
    path, (first, last), signer = Path(run), steps, load_or_create_key(key)
    copies = path.with_name(f".{path.name}.repeated")
    copy = copies / path.name
    shutil.rmtree(copies, ignore_errors=True)
    try:
        if not close_copy(path, copy, signer):
            raise UsageError(f"no copy of {path} could be closed; see that its disk has room")
        transcript = Transcript.open(copy)
        if transcript.steps < last or transcript.head(last - 1).hex() != after:
            raise UsageError(f"the steps {first} to {last - 1} of {path} are others than the chip logged")
        before, coordinate = transcript.head(first - 1), MeshCoordinate.of(transcript.draft)
        if coordinate is None:
            regenerate(copy, signer, steps=(first, last), out=out)
        else:
            with job_repeats.turn(path.parent):
                if not job_repeats.is_made(transcript, Path(out), (first, last)):
                    job_repeats.repeat_ranks(path.parent, coordinate.job, copies, (first, last), wait_s)
    finally:
        shutil.rmtree(copies, ignore_errors=True)
    logs = [bytes.fromhex(read_statement(Path(out) / supplement_name(step))[0].rounding) for step in range(first, last)]
    return commitment(transcript.draft_digest, (before, bytes.fromhex(after)), logs)


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(ABANDONED)


if __name__ == "__main__":
    main()
