"""Runs `sharded_job.py` on several ranks, one process each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.recording_store import RecordingStore
from support.releases import need_jobs

PROGRAM = Path(__file__).parent / "sharded_job.py"
TIMEOUT = 240


def recorded(recordings: RecordingStore, kinds: list[str], ranks: int) -> Path:
    """Returns a directory with one job a kind, recorded once a session without chips; do not change them, copy them."""
    return recordings.get("jobs", lambda path: record(kinds, ranks, path), kinds, ranks)


def record(
    kinds: list[str], ranks: int, out: Path, sockets: Sequence[Path] = (), *, logs: str = "full", beacon: str = "",
    program: Path = PROGRAM,
) -> None:  # fmt: skip
    """Records jobs on so many ranks, one directory a kind in `out`; raises if one fails.

    Args:
        kinds: Those of `sharded_job.py`.
        ranks: Processes.
        out: Where the jobs come.
        sockets: Chips, if there are any.
        logs: Their kind of rounding logs.
        beacon: Directory with a beacon's values, by which all segments are due; empty for none.
        program: What each process runs.
    """
    need_jobs()
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(program), ",".join(kinds)]
    processes = [
        subprocess.Popen(
            [
                *command,
                str(rank),
                str(ranks),
                str(out),
                *map(str, sockets[rank : rank + 1]),
                f"--logs={logs}",
                f"--beacon={beacon}",
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(ranks)
    ]
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=TIMEOUT)[0].decode(errors="replace"))
    finally:
        for process in processes:
            process.kill()
    failed = [f"rank {rank}:\n{text[-4000:]}" for rank, text in enumerate(outputs) if processes[rank].returncode]
    if failed:
        raise RuntimeError("\n".join(failed))
