"""The process that speaks to Ray for a Verifier: `python -m verifier.farm.ray_driver ADDRESS`, tasks on stdin.

Ray reads what its nodes send by pickle and takes over signals, so it has no place in the process that holds the
Verifier's keys. This one has none, and speaks lines of JSON: it is told `{"id": n, "gpu": bool, "task": ...}` and says
`{"ready": ...}` once, then `{"id": n, ...}` with what `verifier.farm.ray_node.work` yields. It ends with its stdin.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
from importlib import import_module
from typing import Any

from verifier.farm import ray_node

ray: Any = import_module("ray")  # an extra: where types are checked it may not be installed

LOCAL = "local"
"""The address of a Ray of one's own, which is started on this machine and ends with this process."""
TRIES = 2
"""How often a replay is begun at most: a node that dies costs one more."""


class Driver:
    """Runs tasks on Ray, each followed by a thread."""

    def __init__(self, out: Any) -> None:
        """Says what happens to `out`, a binary file."""
        self._out, self._lock = out, threading.Lock()
        self._work = ray.remote(ray_node.work)

    def say(self, message: dict[str, Any]) -> None:
        """Writes one line; that the reader may be gone does not matter."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._out.write(json.dumps(message).encode() + b"\n")
            self._out.flush()

    def follow(self, number: int, task: dict[str, Any], gpu: bool) -> None:
        """Runs one task to its end, and once more if what it ran on dies."""
        options = {"num_cpus": 1, "num_gpus": int(gpu), "max_retries": 0, "num_returns": "streaming"}
        why = ""
        for _ in range(TRIES):
            try:
                for reference in self._work.options(**options).remote(json.dumps(task).encode()):
                    said = ray.get(reference)
                    message = json.loads(said) if isinstance(said, bytes) else {"died": "a Ray node says nonsense"}
                    self.say({"id": number, **message})
                    if "progress" not in message:
                        return
                why = "it said nothing about its end"
            except ray.exceptions.TaskCancelledError:
                return
            except (ray.exceptions.RayError, ValueError, TypeError) as error:
                why = type(error).__name__
        self.say({"id": number, "died": f"what it ran on in Ray died {TRIES} times ({why}); see Ray's own logs"})


def main() -> None:
    """Serves until stdin ends."""
    address = sys.argv[1]
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints goes to stderr
    try:
        if address == LOCAL:
            # Not a share of the memory: what travels is small.
            ray.init(
                address=LOCAL, include_dashboard=False, log_to_driver=False, object_store_memory=256 << 20,
                _temp_dir=sys.argv[2],
            )  # fmt: skip
        else:
            ray.init(address=address, log_to_driver=False)
    except Exception as error:
        # Ray raises errors of many kinds here, all of which mean the same to the parent process.
        out.write(json.dumps({"failed": f"{type(error).__name__}: {error}"[:500]}).encode() + b"\n")
        out.flush()
        os._exit(1)
    driver = Driver(out)
    nodes = [str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]]
    driver.say({"ready": {"nodes": nodes, "gpus": ray.cluster_resources().get("GPU", 0.0)}})
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        arguments = (asked["id"], asked["task"], asked["gpu"])
        threading.Thread(target=driver.follow, args=arguments, daemon=True).start()
    ray.shutdown()  # ends the workers of this process's tasks, and with them theirs
    if address == LOCAL:
        shutil.rmtree(sys.argv[2], ignore_errors=True)  # the Verifier may have been killed
    os._exit(0)


if __name__ == "__main__":
    main()
