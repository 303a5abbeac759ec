"""The process that makes rounding logs for the Prover's service: `python -m prover.keeping.regeneration_process`.

It executes steps of the Prover's own transcript under the settings that recorded them, which belong to a whole process.
The first line of stdin is the request, and lines of stdout say how far it is and how it ended. It ends with its stdin,
so that no process of a service that was killed goes on.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from weighbridge.attest.manifest import load_or_create_key
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.job_regeneration import regenerate_job
from weighbridge.execution.regeneration import regenerate

MODULE = "prover.keeping.regeneration_process"
ABANDONED = 3
"""Exit code when stdin ended first."""


def main() -> None:
    """Answers one request: lists of paths `runs`, `keys` and `outs`, `steps`, (first, last + 1), and whether a `tree`.

    There are several runs if they are the ranks of a job, whose steps have no tree.
    """
    asked = json.loads(sys.stdin.buffer.readline())
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints goes to stderr

    def say(**message: Any) -> None:
        answer.write(json.dumps(message).encode() + b"\n")
        answer.flush()

    threading.Thread(target=_end_with_stdin, daemon=True).start()
    first, last = asked["steps"]
    try:
        runs, keys = asked["runs"], [load_or_create_key(key) for key in asked["keys"]]
        options: dict[str, Any] = {"steps": (first, last), "progress": lambda done, of: say(progress=[done, of])}
        if asked["job"]:
            regenerate_job(runs, keys, outs=asked["outs"], **options)
        else:
            regenerate(runs[0], keys[0], out=asked["outs"][0], tree=asked["tree"], **options)
        say(done=True)
    except WeighbridgeError as error:
        say(error={"code": error.reason, "message": error.message})


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(ABANDONED)


if __name__ == "__main__":
    main()
