"""What a result was measured on, where results are kept, and this machine's other instruction sets."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"

BESIDE = "beside"
"""Key of a result file under which smaller results lie that must not replace a larger one, by their names."""

Environment = Mapping[str, str]

HERE: Environment = {"OMP_NUM_THREADS": "1"}
SSE2: Environment = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "MKL_CBWR": "COMPATIBLE",
    "OMP_NUM_THREADS": "2",
    "OMP_WAIT_POLICY": "passive",
}
AVX2: Environment = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "MKL_CBWR": "AVX2",
    "OMP_NUM_THREADS": "3",
    "OMP_WAIT_POLICY": "passive",
}
ELSEWHERE: Mapping[str, Environment] = {"SSE2": SSE2, "AVX2": AVX2}
"""Stand-ins for other machines: another instruction set and another number of threads."""


def about(device: str = "cpu") -> dict[str, Any]:
    """Returns the date, what computes (processor, instruction set, threads) and the versions, for a result file."""
    return {
        "date": str(date.today()),
        "processor": torch.cuda.get_device_name(device) if device.startswith("cuda") else processor(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def processor() -> str:
    """Returns the processor's name as the operating system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


def save(name: str, result: Mapping[str, Any], beside: str = "") -> None:
    """Writes `results/<name>.json`; a result that is kept `beside` others has a name of its own in that file."""
    RESULTS.mkdir(exist_ok=True)
    if beside:
        kept = load(name) or {}
        result = {**kept, BESIDE: {**kept.get(BESIDE, {}), beside: result}}
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def load(name: str, beside: str = "") -> dict[str, Any] | None:
    """Returns what `save` wrote, or None if there is none yet."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return (found or {}).get(BESIDE, {}).get(beside) if beside else found


def command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module of this repository in a fresh interpreter."""
    return [sys.executable, "-W", "ignore", "-m", module, *arguments]


def start(module: str, *arguments: str, environment: Environment, **options: Any) -> subprocess.Popen[str]:
    """Starts a module of this repository in a fresh process with a pipe on its stdout.

    Args:
        module: Its dotted name.
        *arguments: Its command line.
        environment: Variables set on top of this process's own.
        **options: Further options of `subprocess.Popen`.
    """
    return subprocess.Popen(
        command(module, *arguments), stdout=subprocess.PIPE, text=True, cwd=RESULTS.parents[1],
        env={**os.environ, **environment}, **options,
    )  # fmt: skip


def answer(process: subprocess.Popen[str]) -> Any:
    """Waits for a process that `start` started and returns the last line of its stdout, read as JSON.

    Raises:
        RuntimeError: It failed; what went wrong is on stderr.
    """
    out, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a benchmark process ended with exit code {process.returncode}; its message is above")
    return json.loads(out.splitlines()[-1])


def ask(module: str, *arguments: str, environment: Environment) -> Any:
    """Starts a process, waits for it, and returns the JSON of its last line."""
    return answer(start(module, *arguments, environment=environment))
