"""How a worker process answers: request on stdin, answer on stdout.

It reads the request, gives up what it does not need (`confinement`), and only then opens what a Prover sent.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from weighbridge.core import jit
from weighbridge.core.errors import ReplayWorkerError, WeighbridgeError
from weighbridge.core.host_memory import keep_freed
from weighbridge.execution.fork_server import SEALED
from weighbridge.execution.worker_process import MAX_LINE
from weighbridge.execution.workers import confinement, isolation
from weighbridge.numerics import custom
from weighbridge.numerics.conformance.calibration_tables import DIRECTORY, tables
from weighbridge.numerics.conformance.device_kind import device_kind
from weighbridge.numerics.conformance.switches import switch_off
from weighbridge.numerics.rounding import device_passes
from weighbridge.numerics.warm import warm, warm_decoders


def prepare(device: str, compiling: Callable[[int, int], None] | None = None, *, executes: bool = True) -> None:
    """Switches off algorithms that no bound covers, and warms up what must be loaded before files are out of reach."""
    keep_freed()
    if not executes:
        warm_decoders()
        return
    switch_off()
    device_kind(device)  # it reads a file
    tables()  # so does that
    torch.set_grad_enabled(False)
    warm(compiling)
    there = torch.ones(2, device=device)
    there.sum().item()
    if device_passes.fused(there.device) is not None:  # it is compiled now; what else may be, goes where it may be kept
        os.environ["TRITON_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / "triton")


def _shown_before(request: dict[str, Any]) -> list[Path]:
    """Returns what a worker may read until it is confined, beside what it may read always: what the Verifier names."""
    named = [os.environ.get(DIRECTORY, ""), *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    paths = [Path(each) for each in named if each]
    for rules in request.get("op_rules", ()):
        if rules.endswith(".py"):  # a module is found on `sys.path`, which a program's paths have
            file = Path(rules).resolve()
            paths.append(file if file.parent == Path("/") else file.parent)
    return [path for path in paths if path.exists() and path != Path("/")]


def serve(answered: Callable[[dict[str, Any], list[str], Any], dict[str, Any]], *, executes: bool = True) -> None:
    """Answers one request.

    Args:
        answered: Gives the answer to (request, restrictions in force, a function that sends other messages).
        executes: Whether it evaluates operations. To load their loops takes longer than most answers of a worker that
            only reads, unless torch has one thread and the fork server has loaded them.
    """
    warnings.filterwarnings("ignore")
    request = json.loads(sys.stdin.buffer.read())
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints goes to stderr: stdout carries the answer only

    def send(message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        if len(line) > MAX_LINE:
            raise ReplayWorkerError(f"the answer has {len(line)} bytes, more than {MAX_LINE}; ask for less")
        answer.write(line)
        answer.flush()

    cpu = not str(request["device"]).startswith("cuda")
    readable = [*confinement.program_paths(), *jit.directories(), *map(Path, request.get("paths") or [request["path"]])]
    try:
        # First, as threads forbid it. Drivers of GPUs need more of the machine than a worker would be left with.
        shown = [*readable, *_shown_before(request)]
        apart = cpu and SEALED not in os.environ  # else the session around it is
        isolated = isolation.enter(shown, Path(tempfile.gettempdir())) if apart else []
        prepare(request["device"], lambda done, total: send({"compiling": [done, total]}), executes=executes)
        for name in request.get("op_rules", ()):
            custom.load(name)
        confined = confinement.limit_resources(
            2 * int(request["memory"]) + (2 << 30), int(request["seconds"]), address_space=cpu
        )
        confined += isolated + (isolation.hide_memory() if cpu else [])
        confined += confinement.restrict_files(readable, Path(tempfile.gettempdir()), accelerator=not cpu)
        confined += confinement.deny_system_calls(allow_exec=not cpu)
        send({"result": answered(request, confined, send)})
    except WeighbridgeError as error:
        send({"error": {"code": error.reason, "message": error.message}})
    except (MemoryError, RuntimeError) as error:
        text = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        send(
            {
                "error": {
                    "code": "replay.worker",
                    "message": f"the replay ran out of memory or the device failed: {text}",
                }
            }
        )
