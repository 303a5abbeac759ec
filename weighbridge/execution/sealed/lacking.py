"""What this machine does not permit of what a sealed worker needs, found by trying it in a process of its own.

`python -m weighbridge.execution.sealed.lacking` prints the names, separated by commas.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from weighbridge.attest.sealed_order import SealedWorkerError
from weighbridge.execution.fork_server import PARENT
from weighbridge.execution.sealed import requirements
from weighbridge.execution.workers import isolation

_SWAPS = Path("/proc/swaps")


def lacking() -> tuple[str, ...]:
    """Returns the names of what is missing, as a launcher's refusal has them; empty if sealed workers can run here."""
    if sys.platform != "linux":
        return ("Linux",)
    command = [sys.executable, "-P", "-m", "weighbridge.execution.sealed.lacking"]
    environment = {name: value for name, value in os.environ.items() if name != PARENT}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        return ("isolation",)
    return tuple(name for name in done.stdout.strip().split(",") if name)


def main() -> None:
    """Isolates this process as a worker's is, and prints what did not succeed."""
    try:
        requirements.no_swap(_SWAPS)
    except SealedWorkerError:
        print("no-swap")
        return
    with tempfile.TemporaryDirectory(prefix="weighbridge-probe-") as place:
        if child := os.fork():
            os.waitpid(child, 0)
            return
        applied = isolation.enter([], Path(place))
        os.write(1, ",".join(sorted({*isolation.EVERYTHING} - {*applied, "not-dumpable"})).encode())
        os._exit(0)


if __name__ == "__main__":
    main()
