"""What the GPU benchmarks train, and what they say of the device.

The trainings are those of `weighbridge gpu-evidence`: full sizes, and tiny ones of the same kinds for trying out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import torch

from benchmarks import machine
from weighbridge.cli.gpu_evidence.subjects import SEED, SUBJECTS, Training, policy

__all__ = ["SEED", "SUBJECTS", "Training", "about", "policy", "require_cuda", "rounding_pass"]


def require_cuda() -> None:
    """Ends the program with exit code 2 where there is no CUDA device."""
    if not torch.cuda.is_available():
        print(
            "no CUDA device here: run this on a machine with one, with a CUDA build of PyTorch (TORCH_INDEX=URL before "
            "the first install, or GPU_PYTHON=the interpreter that has it); --dry-run tries the script out on the CPU",
            file=sys.stderr,
        )
        raise SystemExit(2)


def about() -> dict[str, Any]:
    """What a GPU result was measured on: device, driver, versions, and the processor beside it."""
    if not torch.cuda.is_available():
        return machine.about()
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        driver = "unknown"
    return {
        **machine.about("cuda"), "driver": driver, "cuda": torch.version.cuda, "host": machine.processor(),
        "rounding_pass": rounding_pass("cuda"), "omp_threads": os.environ.get("OMP_NUM_THREADS", ""),
    }  # fmt: skip


def rounding_pass(device: str) -> str:
    """Which rounding pass a device gets: `numba`, `triton` or `pytorch`."""
    from weighbridge.numerics.rounding import device_passes

    if device == "cpu":
        return "numba"
    return "pytorch" if device_passes.fused(torch.empty(0, device=device).device) is None else "triton"


if __name__ == "__main__":
    require_cuda()
