"""Replays transcripts in one process: a path a line on stdin, a JSON answer a line on stdout.

Started with another `ATEN_CPU_CAPABILITY` and `OMP_NUM_THREADS` than the tests, it stands for another machine.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

from support.recordings import replay_here


def main() -> None:
    """Answers until stdin ends."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(replay_here(Path(line.rstrip("\n")))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
