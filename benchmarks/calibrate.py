"""Measures the factors of calibrated bounds and writes the committed table of `weighbridge.numerics.conformance`.

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import processor
from weighbridge.numerics.conformance.calibration_tables import COMMITTED
from weighbridge.numerics.measured_errors import SAFETY, measuring

SETTINGS = [("default", 1), ("avx2", 2), ("avx512", 2)]


def run(names: Sequence[str]) -> dict[str, Any]:
    """Trains the models in this process and returns what was measured."""
    from benchmarks.models import MODELS
    from prover import Recorder

    warnings.simplefilter("ignore")
    with measuring() as found:
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
    capability = torch.backends.cpu.get_cpu_capability()
    return {"ratios": found.ratios, "samples": found.samples, "capability": capability}


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
        "device": f"cpu {processor()}",
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
    COMMITTED.write_text(json.dumps(table, indent=1) + "\n")
    print(COMMITTED.read_text())


if __name__ == "__main__":
    main()
