"""Measures the factors of calibrated bounds and writes `weighbridge/numerics/calibration.json`.

`python benchmarks/calibrate.py` trains small models of several kinds under each instruction set of this machine (a
process each). Every rounded operation is computed twice, in float32 by the device's own kernel and in float64, from the
same operands; the largest |float32 - float64| / bound, the bound in the form that calibrated ones are multiples of
(`bounds.without_growth`), is the operation's ratio. The factor is the largest ratio over all runs times the safety
factor.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import processor
from weighbridge.numerics.arrays.physical import dense_strides, flat, lay_out
from weighbridge.numerics.bounds import Call, without_growth
from weighbridge.numerics.conformance.bound_policy import TABLE
from weighbridge.numerics.operations import rounded
from weighbridge.numerics.rounding.bound import dense_bound

SAFETY = 4.0
SETTINGS = [("default", 1), ("avx2", 2), ("avx512", 2)]
TO_FLOAT32 = 2.0**29
"""Unit roundoff of float32 over that of float64."""


def measure(ratios: dict[str, float], samples: dict[str, int]) -> Callable[[], None]:
    """Has every rounded operation measured; returns a function that undoes it."""
    original = rounded._limits

    def limits(rule: Any, call: Call, policy: Any, wide: torch.dtype) -> Any:
        args = {k: v for k, v in call.args.items() if not k.startswith("__")}
        packet = getattr(torch.ops.aten, call.name)
        op = getattr(packet, call.args["__overload__"])
        assert rule.bound is not None
        with without_growth():
            bounds = rule.bound(call)
        narrow = {k: _narrow(v) for k, v in args.items()}
        out = op(**narrow)
        returned = [t for t in (out if isinstance(out, (tuple, list)) else [out]) if _is_float(t)]
        for x64, x32, bound in zip(call.results, returned, bounds, strict=False):
            if not x64.numel():
                continue
            exact = lay_out(x64, dense_strides(x64.shape, x64.stride()))
            e = dense_bound(exact, bound) * TO_FLOAT32
            error = (flat(exact) - lay_out(x32.double(), exact.stride()).as_strided((exact.numel(),), (1,))).abs()
            usable = (e > 0) & torch.isfinite(error) & (flat(exact).abs() > 2.0**-100)
            if bool(usable.any()):
                ratio = float((error[usable] / e[usable]).max())
                ratios[call.name] = max(ratios.get(call.name, 0.0), ratio)
                samples[call.name] = samples.get(call.name, 0) + int(usable.sum())
        return original(rule, call, policy, wide)

    rounded._limits = limits
    return lambda: setattr(rounded, "_limits", original)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _narrow(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
        return value.float()
    return torch.float32 if value is torch.float64 else value


def run(names: Sequence[str]) -> dict[str, Any]:
    """Trains the models in this process and returns what was measured."""
    from benchmarks.models import MODELS
    from prover import Recorder

    warnings.simplefilter("ignore")
    ratios: dict[str, float] = {}
    samples: dict[str, int] = {}
    undo = measure(ratios, samples)
    for name in names or MODELS:
        model = MODELS[name]
        with tempfile.TemporaryDirectory() as directory, Recorder(Path(directory) / "run", seed=11) as recorder:
            with recorder.initialisation():
                step = model()
            recorder.attach(*step.attached)
            for index in range(6):
                batch = step.batch(index)
                with recorder.step(batch):
                    step.update(batch)
    undo()
    return {"ratios": ratios, "samples": samples, "capability": torch.backends.cpu.get_cpu_capability()}


def main() -> None:
    """Runs every setting in a process of its own and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run(options.only)))
        return
    ratios: dict[str, float] = {}
    samples: dict[str, int] = {}
    settings = []
    for capability, threads in SETTINGS:
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.calibrate", "--child", "--only", *options.only]
        answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        found = json.loads(answer.splitlines()[-1])
        settings.append(f"{found['capability']}, {threads} threads")
        for name, ratio in found["ratios"].items():
            ratios[name] = max(ratios.get(name, 0.0), ratio)
            samples[name] = samples.get(name, 0) + found["samples"][name]
    table = {
        "about": "Largest observed |float32 - float64| over bound per operation, and that times the safety factor.",
        "made": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()} {processor()}",
        "torch": torch.__version__,
        "settings": settings,
        "safety": SAFETY,
        "operations": {
            name: {
                "factor": float(f"{SAFETY * ratios[name]:.3g}"),
                "ratio": float(f"{ratios[name]:.3g}"),
                "elements": samples[name],
            }
            for name in sorted(ratios)
            if ratios[name] > 0
        },
    }
    TABLE.write_text(json.dumps(table, indent=1) + "\n")
    print(TABLE.read_text())


if __name__ == "__main__":
    main()
