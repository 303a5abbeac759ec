"""What runs on a node of a Ray farm: one replay worker, confined as anywhere, and its answer as it came.

A task and everything that is said about it are bytes of JSON, so that nothing of ours is ever pickled.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

from weighbridge.core.errors import ReplayWorkerError
from weighbridge.execution.worker_process import Limits, run_worker

MODULES = frozenset({"weighbridge.execution.workers.replay_worker", "weighbridge.execution.workers.job_worker"})
"""What a node runs, and nothing else."""
_EVERY_S = 0.2


def work(task: bytes) -> Iterator[bytes]:
    """Runs a worker process on this node and yields what there is to say of it, the last being how it ended.

    Args:
        task: `module`, `request`, `limits` (bytes of memory, seconds) and `env`, as
        `weighbridge.execution.worker_process.run_worker`
            takes them.

    Yields:
        `{"progress": [done, of]}`, at times; then `{"answer": ...}`, the worker's own, or `{"died": why}`.
    """
    asked = json.loads(task)
    said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    given_up, spoken = threading.Event(), 0.0

    def say(done: int, of: int) -> None:
        nonlocal spoken
        if time.monotonic() - spoken >= _EVERY_S:
            spoken = time.monotonic()
            said.put({"progress": [done, of]})

    def run() -> None:
        try:
            if asked["module"] not in MODULES:
                raise ReplayWorkerError("a Ray node runs replay workers only; use the same version on all machines")
            limits = Limits(*asked["limits"])
            answer = run_worker(asked["module"], asked["request"], limits, asked["env"], say, given_up.is_set)
            said.put({"answer": answer})
        except ReplayWorkerError as error:
            said.put({"died": error.message})
        except OSError as error:
            said.put({"died": f"the replay worker could not be run ({error.strerror}); free memory and ask again"})

    threading.Thread(target=run, daemon=True).start()
    try:
        while True:
            message = said.get()
            yield json.dumps(message).encode()
            if "progress" not in message:
                return
    finally:
        given_up.set()
