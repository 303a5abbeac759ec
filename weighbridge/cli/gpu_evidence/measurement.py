"""What is measured on one device, in a process of its own: `python -m weighbridge.cli.gpu_evidence.measurement`.

It reads a list of tasks from standard input, says on lines of JSON what it is at, and after each task what it found.
Kernels of a library, the number of threads and a CUDA context are a process's for good, so every place gets processes
of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from prover import Recorder
from weighbridge.cli.gpu_evidence.measured_trainings import TRAININGS
from weighbridge.cli.gpu_evidence.subjects import SEED, SUBJECTS, policy
from weighbridge.numerics.conformance.device_kind import device_kind, processor
from weighbridge.numerics.conformance.switches import conforming
from weighbridge.numerics.measured_errors import measuring
from weighbridge.numerics.units import identification, probing

_WARM = 1
_MEASURED_STEPS = 6


def record(subject: str, device: str, tiny: bool, steps: int, out: str) -> dict[str, Any]:
    """Records a training from its initialisation on; returns counts, and the milliseconds of steps."""
    taken = []
    with Recorder(out, seed=SEED, policy=policy(subject), checkpoint_every=1 << 20) as recorder:
        with recorder.initialisation():
            made = SUBJECTS[subject](device, tiny)
        recorder.attach(made.model, made.optimizer)
        for number in range(steps):
            batch, begin = made.batch(number), time.perf_counter()
            with recorder.step(batch):
                made.update(batch)
            taken.append(1e3 * (time.perf_counter() - begin))
            _say(done=number + 1, of=steps)
        rounded, logged = recorder.rounded, recorder.logged
    return {
        "parameters": sum(p.numel() for p in made.model.parameters()), "rounded": rounded, "logged": logged,
        "recorded_ms": _ms(taken),
    }  # fmt: skip


def unrecorded(subject: str, device: str, tiny: bool, rounds: int) -> dict[str, Any]:
    """Times the same steps without recording: as they are, and computed wide."""
    from weighbridge.cli.gpu_evidence.subjects import cast_floats

    times = {}
    for name in ("plain", "wide"):
        torch.manual_seed(SEED)
        made = SUBJECTS[subject](device, tiny)
        dtype = None
        if name == "wide":
            dtype, made.half = torch.float32 if made.half else torch.float64, False
            made.model.to(dtype)
        around = (sdpa_kernel([SDPBackend.MATH]), conforming()) if dtype else (nullcontext(), nullcontext())
        taken = []
        with around[0], around[1]:
            for number in range(rounds):
                batch = made.batch(number) if dtype is None else cast_floats(made.batch(number), dtype)
                _wait(device)
                begin = time.perf_counter()
                made.update(batch)
                _wait(device)
                taken.append(1e3 * (time.perf_counter() - begin))
        times[f"{name}_ms"] = _ms(taken)
        _say(done=len(times), of=2)
    return times


def units(device: str) -> dict[str, Any]:
    """Multiplies the matrices that tell matrix units apart; the reader of the result identifies the unit."""
    short, long = identification.returned(device)
    return {"short": short, "long": long}


def products(device: str, products: list[str]) -> dict[str, Any]:
    """Multiplies operands that cancel, of the trainings' own sizes; the reader finds the rule of each."""
    found = {}
    for number, name in enumerate(products, 1):
        found[name] = probing.returned(probing.read(name), torch.matmul, device)
        _say(done=number, of=len(products))
    return found


def errors(device: str, trainings: list[str]) -> dict[str, Any]:
    """Measures the errors of the device's float32 kernels in small trainings."""
    with measuring() as found, tempfile.TemporaryDirectory(prefix="weighbridge-evidence-") as directory:
        for index, name in enumerate(trainings):
            with Recorder(Path(directory) / name, seed=SEED) as recorder:
                with recorder.initialisation():
                    made = TRAININGS[name](device)
                recorder.attach(made.model, made.optimizer)
                for number in range(_MEASURED_STEPS):
                    batch = made.batch(number)
                    with recorder.step(batch):
                        made.update(batch)
            _say(done=index + 1, of=len(trainings))
    return {
        name: {"ratio": float(f"{found.ratios[name]:.3g}"), "elements": found.samples[name]}
        for name in sorted(found.ratios)
    }


def about(device: str) -> dict[str, Any]:
    """Says what computes here: everything of it is this machine's own word."""
    said: dict[str, Any] = {
        "kind": device_kind(device), "host": processor(), "cores": os.cpu_count() or 0, "torch": torch.__version__,
        "python": sys.version.split()[0], "threads": torch.get_num_threads(),
    }  # fmt: skip
    if device != "cpu":
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            driver = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.split()[0]
        except (OSError, subprocess.SubprocessError, IndexError):
            driver = "unknown"
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
        memory = torch.cuda.get_device_properties(device).total_memory
        said |= {"cuda": torch.version.cuda or "", "driver": driver, "capability": capability, "memory": memory}
    return said


_TASKS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "record": record, "unrecorded": unrecorded, "units": units, "products": products, "errors": errors,
    "about": about,
}  # fmt: skip


def _ms(taken: list[float]) -> dict[str, float]:
    """Returns median and least without the first, in which kernels are compiled and memory is allocated."""
    kept = taken[_WARM:] or taken
    return {"median": round(statistics.median(kept), 3), "least": round(min(kept), 3)}


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    """Does what standard input says."""
    warnings.filterwarnings("ignore")
    for asked in json.loads(sys.stdin.read()):
        _say(task=asked["task"])
        _say(result=_TASKS[asked.pop("task")](**asked))


if __name__ == "__main__":
    main()
