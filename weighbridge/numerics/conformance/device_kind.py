"""What kind of device computes: everything that decides how a conforming result comes out within its bound.

A recording says which kind it runs on. On the same kind a replay computes the same wide values, so that a difference
which elsewhere a bound too small might explain has no such explanation.
"""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

SETTINGS = (
    "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "CUBLAS_WORKSPACE_CONFIG", "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
)  # fmt: skip
"""Environment variables by which a user chooses among the kernels of a library, or how our loops are compiled: sums of
float32 are added up in the order that suits the instructions there are (`weighbridge.numerics.operations.sums`)."""

MOST = 500
"""Characters of a kind."""

_COMPILER = "numba "
_THREADS = re.compile(r"[0-9]{1,6} threads")
_SETS = ("DEFAULT", "AVX2", "AVX512")
"""Instruction sets of x86, each of which includes those before it."""


def device_kind(device: str | torch.device) -> str:
    """Returns one line that two devices share only if they have the same model, libraries, threads and settings.

    Args:
        device: `cpu`, `cuda`, `cuda:1`, ...
    """
    device = torch.device(device)
    if device.type == "cuda":
        parts = [f"cuda {torch.cuda.get_device_name(device)}"]
    elif device.type == "cpu":
        parts = [f"cpu {torch.backends.cpu.get_cpu_capability()}", processor(), f"{torch.get_num_threads()} threads"]
    else:
        parts = [device.type]
    parts.append(f"torch {torch.__version__}")
    if device.type == "cpu" and (compiler := _numba()):
        parts.append(f"{_COMPILER}{compiler}")
    settings = (f"{name}={value}" for name in SETTINGS if (value := os.environ.get(name)))
    return ", ".join((*parts, *settings))[:MOST]


def may_be(there: str | None, here: str) -> bool:
    """Says whether what a recording says of its device is this kind, as far as it says anything.

    What was recorded before kinds named Numba does not say which version of it compiled the loops.

    Args:
        there: What the recording says; None if nothing.
        here: What `device_kind` returns here.
    """
    return there == here or there == ", ".join(part for part in here.split(", ") if not part.startswith(_COMPILER))


def device_model(device: str | torch.device) -> str:
    """Returns the first part of what tells devices apart: `cuda` and the GPU's name, or `cpu` and the processor's."""
    device = torch.device(device)
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)}"
    return f"cpu {processor()}" if device.type == "cpu" else device.type


def model_of(kind: str) -> str:
    """Returns the model of a device of which only the kind is known (`device_kind`); empty if it names none."""
    first, _, rest = kind.partition(", ")
    if first.startswith("cpu "):
        return f"cpu {rest.partition(', ')[0]}"
    return first if first.startswith("cuda ") else ""


@cache
def _numba() -> str:
    """Returns the version of what compiles our loops, empty if it is not there; read once, like `processor`."""
    try:
        return version("numba")
    except PackageNotFoundError:
        return ""


@cache
def processor() -> str:
    """Returns the processor's name as the operating system gives it; read once, as a confined process cannot."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return platform.processor() or platform.machine()


def settings_of(kind: str) -> dict[str, str]:
    """Returns the environment in which a process of this machine is of a kind, as far as settings decide that.

    Those are the threads, an instruction set that this process has too, and the variables of `SETTINGS`. Whether the
    process is of that kind, only its `device_kind` tells.

    Args:
        kind: What `device_kind` returned, here or elsewhere.
    """
    parts = kind.split(", ")
    said = dict(part.split("=", 1) for part in parts if "=" in part)
    found = {name: said[name] for name in SETTINGS if name in said}
    if threads := next((part.split()[0] for part in parts if _THREADS.fullmatch(part)), None):
        found["OMP_NUM_THREADS"] = threads
    here, there = torch.backends.cpu.get_cpu_capability(), parts[0].removeprefix("cpu ")
    if there in _SETS and here in _SETS and _SETS.index(there) <= _SETS.index(here):
        found["ATEN_CPU_CAPABILITY"] = there.lower()
    return found
