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
from pathlib import Path
from typing import Any

from weighbridge.attest.manifest import load_or_create_key
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.regeneration import regenerate

MODULE = "prover.keeping.regeneration_process"
ABANDONED = 3
"""Exit code when stdin ended first."""


def main() -> None:
    """Answers one request: `run`, `key` and `out` are paths, `steps` the first step and the one after the last."""
    asked = json.loads(sys.stdin.buffer.readline())
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints goes to stderr

    def say(**message: Any) -> None:
        answer.write(json.dumps(message).encode() + b"\n")
        answer.flush()

    threading.Thread(target=_end_with_stdin, daemon=True).start()
    first, last = asked["steps"]
    try:
        regenerate(
            asked["run"], load_or_create_key(asked["key"]), steps=(first, last), out=Path(asked["out"]),
            progress=lambda done, total: say(progress=[done, total]),
        )  # fmt: skip
        say(done=True)
    except WeighbridgeError as error:
        say(error={"code": error.reason, "message": error.message})


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(ABANDONED)


if __name__ == "__main__":
    main()
