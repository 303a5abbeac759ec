"""Asks a worker process, which has no keys, database or network, and reads what it answers as hostile.

A worker opens what a Prover sent; the process that asks never does. `import weighbridge` loads this module, so it loads
no PyTorch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from weighbridge.core.announcement import compiling
from weighbridge.core.bounded import decode_json
from weighbridge.core.errors import FormatError, ReplayWorkerError, TranscriptError, UsageError, WeighbridgeError
from weighbridge.execution import fork_server

_PATHS = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "WEIGHBRIDGE_CALIBRATIONS",
)  # fmt: skip
"""Environment variables passed on that name paths, which may be relative: a worker is in a directory of its own."""
_PASSED = (
    *_PATHS, "HOME", "LANG", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUBLAS_WORKSPACE_CONFIG",
    "ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", fork_server.SEALED,
)  # fmt: skip
MAX_LINE, _MAX_ITEMS = 288 << 20, 1 << 24
"""Bytes and items of one line of a worker's answer."""
_MAX_COUNT = 1 << 40
_WATCH_SECONDS = 0.2
Worker = Callable[
    [
        str,
        Mapping[str, Any],
        "Limits",
        Mapping[str, str] | None,
        Callable[[int, int], None] | None,
        Callable[[], bool] | None,
    ],
    dict[str, Any],
]
"""Has a worker process run somewhere: takes what `run_worker` takes, and returns and raises the same."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a replay may use.

    Attributes:
        memory: Bytes of storages of one tape, and (on the CPU) of address space beyond the interpreter's own, times
            two.
        seconds: Wall-clock and processor time.
    """

    memory: int = 16 << 30
    seconds: int = 6 * 3600


def rules_named(op_rules: Sequence[str]) -> list[str]:
    """Returns modules and files of rules as a worker, which is in a directory of its own, finds them."""
    return [str(Path(name).resolve()) if name.endswith(".py") else name for name in op_rules]


def run_worker(
    module: str,
    request: Mapping[str, Any],
    limits: Limits,
    env: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Asks a worker process that runs `module` and returns its answer, which is hostile.

    Args:
        module: One whose `main` is that of `weighbridge.execution.workers.replay_worker`.
        request: What it is asked, JSON-compatible.
        limits: On its time; those on memory are part of the request.
        env: Its environment on top of the few variables passed on.
        progress: Called with (steps done, steps to do).
        cancelled: As for `replay`.

    Raises:
        ReplayWorkerError: If it died, was ended, ran out of its limits or answered nonsense.
    """
    environment = _environment(env)
    with (
        tempfile.TemporaryDirectory(prefix="weighbridge-replay-") as scratch,
        _started(
            module, environment, scratch, on_cpu=not str(request.get("device", "cpu")).startswith("cuda")
        ) as worker,
    ):
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        ended = threading.Event()
        watch = threading.Thread(target=_end_in_time, args=(worker, limits.seconds, ended, cancelled), daemon=True)
        watch.start()
        errors: list[bytes] = []
        drain = threading.Thread(target=lambda stream=worker.stderr: errors.extend(_tail(stream)), daemon=True)
        drain.start()
        try:
            worker.stdin.write(json.dumps(request).encode())
            worker.stdin.close()
            answer = read_answer(worker.stdout, progress)
            code = worker.wait()
        except BrokenPipeError:
            code, answer = worker.wait(), None
        finally:
            ended.set()
            if worker.poll() is None:
                worker.kill()
        drain.join(timeout=5)
    if answer is None:
        last = b"".join(errors).decode(errors="replace").strip().splitlines()[-1:]
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise ReplayWorkerError(
            f"the replay worker ended with {why} and no answer ({last[0][:300] if last else 'no message'}); "
            "if it ran out of memory or time, raise the limits",
            exit=code,
        )
    return answer


def prepare(env: Mapping[str, str] | None = None) -> bool:
    """Starts what workers with such an environment are forked from, before this process gives up starting programs.

    Args:
        env: As `run_worker` takes it.

    Returns:
        Whether `run_worker` can then start workers.
    """
    return fork_server.SUPPORTED and fork_server.prepare(_environment(env))


def prepared(env: Mapping[str, str] | None = None) -> bool:
    """Whether `run_worker` can still start workers with such an environment without starting a program first."""
    return fork_server.SUPPORTED and fork_server.alive(_environment(env))


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k in _PASSED}
    environment.update(env or {})
    for name in environment.keys() & set(_PATHS):
        environment[name] = os.pathsep.join(os.path.abspath(p) for p in environment[name].split(os.pathsep) if p)
    return environment


def _started(
    module: str, environment: Mapping[str, str], scratch: str, *, on_cpu: bool
) -> subprocess.Popen[bytes] | fork_server.Worker:
    """Starts a worker process; one that uses a GPU as a fresh program, as CUDA's state is not to be forked."""
    if on_cpu and fork_server.SUPPORTED:
        return fork_server.start(module, environment, scratch)
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, "TMPDIR": scratch, fork_server.PARENT: str(os.getpid())},
        cwd=scratch,
    )


def _end_in_time(
    worker: subprocess.Popen[bytes] | fork_server.Worker,
    seconds: float,
    ended: threading.Event,
    cancelled: Callable[[], bool] | None,
) -> None:
    """Kills the worker when its time is over or its answer is not wanted any more."""
    deadline = time.monotonic() + seconds
    while not ended.wait(max(0.0, min(_WATCH_SECONDS, deadline - time.monotonic()))):
        if time.monotonic() >= deadline or (cancelled is not None and cancelled()):
            worker.kill()
            return


def _tail(stream: Any) -> list[bytes]:
    kept: list[bytes] = []
    for line in iter(lambda: stream.readline(65536), b""):
        kept = [*kept[-20:], line]
    return kept


def read_answer(stream: Any, progress: Callable[[int, int], None] | None) -> dict[str, Any] | None:
    """Reads the worker's lines until its answer."""
    announcement = compiling()
    for line in iter(lambda: stream.readline(MAX_LINE), b""):
        try:
            message = decode_json(line, max_items=_MAX_ITEMS)
            if "compiling" in message:
                announcement(*_counts(message["compiling"]))
                continue
            if "progress" in message:
                counts = _counts(message["progress"])
                if progress is not None:
                    progress(*counts)
                continue
            if "error" in message or "result" in message:
                return cast("dict[str, Any]", message)
        except (FormatError, ValueError, TypeError, KeyError, OverflowError):
            pass
        raise ReplayWorkerError("the replay worker answered something that is not a result")
    return None


def _counts(raw: Any) -> tuple[int, int]:
    """Reads (done, total). Numbers that are no counts could make a progress bar run out of memory."""
    done, total = raw
    if type(done) is not int or type(total) is not int or not 0 <= done <= total <= _MAX_COUNT:
        raise ValueError("counts")
    return done, total


def raise_error(message: dict[str, Any]) -> None:
    """Raises the error that a worker answered, if it did.

    Raises:
        WeighbridgeError: That error.
        KeyError, TypeError, ValueError: The answer is malformed; for the caller to turn into its own error.
    """
    if "error" in message:
        error = message["error"]
        code, text = str(error["code"])[:200], str(error["message"])[:2000]
        kind: type[WeighbridgeError] = UsageError if code == "usage" else TranscriptError
        raise kind(text, code=code)
