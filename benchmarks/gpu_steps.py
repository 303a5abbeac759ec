"""What a step costs on a GPU: plain, computed wide, recorded; and what the rounding pass and the draws cost there.

`python -m benchmarks.gpu_steps [--only NAME ...] [--rounds N]`. All in one process, after each other; the first rounds,
which compile kernels and allocate, are not counted; times are medians with the device waited for. *Wide* is the same
training in float64 without recording (the library computes the loss in float32 all the same), and in float32 where
products are in bfloat16. A pass goes over 20 M float64 values with a bound of two factors; beside it the bare cast.
Results go to benchmarks/results/gpu_steps.json. Exit code 2 without a CUDA device.

`--dry-run` tries the script out on the CPU with tiny sizes and writes nothing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import gpu_subjects, machine
from benchmarks.gpu_subjects import SEED, SUBJECTS
from benchmarks.models import cast_floats
from prover import Recorder
from weighbridge.numerics.conformance.switches import conforming
from weighbridge.numerics.random import philox, variates
from weighbridge.numerics.random.variates import Draw
from weighbridge.numerics.rounding import cpu_kernels, device_passes
from weighbridge.numerics.rounding.bound import Bound

WARM = 2


def wait(device: str) -> None:
    """Waits for what has been started on a device."""
    if device == "cuda":
        torch.cuda.synchronize()


def median(action: Callable[[int], object], rounds: int, device: str) -> float:
    """The median time of an action, which is given the number of the round, in milliseconds."""
    taken = []
    for number in range(WARM + rounds):
        wait(device)
        begin = time.perf_counter()
        action(number)
        wait(device)
        taken.append(1e3 * (time.perf_counter() - begin))
    return round(statistics.median(taken[WARM:]), 3)


def unrecorded(name: str, device: str, tiny: bool, wide: bool, rounds: int) -> float:
    """Milliseconds of an unrecorded step."""
    torch.manual_seed(SEED)
    made = SUBJECTS[name](device, tiny)
    if not wide:
        return median(lambda number: made.update(made.batch(number)), rounds, device)
    half, made.half = made.half, False
    dtype = torch.float32 if half else torch.float64
    made.model.to(dtype)
    with sdpa_kernel([SDPBackend.MATH]), conforming():
        return median(lambda number: made.update(cast_floats(made.batch(number), dtype)), rounds, device)


def recorded(name: str, device: str, tiny: bool, rounds: int) -> float:
    """Milliseconds of a recorded step, state hashed and record written."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-gpu-") as directory:
        path = Path(directory) / "run"
        with Recorder(path, seed=SEED, policy=gpu_subjects.policy(name), checkpoint_every=1 << 20) as recorder:
            with recorder.initialisation():
                made = SUBJECTS[name](device, tiny)
            recorder.attach(made.model, made.optimizer)

            def step(number: int) -> None:
                batch = made.batch(number)
                with recorder.step(batch):
                    made.update(batch)

            return median(step, rounds, device)


def steps(name: str, device: str, tiny: bool, rounds: int) -> dict[str, Any]:
    """Measures one subject in all ways."""
    times = {
        "plain": unrecorded(name, device, tiny, False, rounds),
        "wide": unrecorded(name, device, tiny, True, rounds),
        "recorded": recorded(name, device, tiny, rounds),
    }
    return {
        "milliseconds": times,
        "rounds": rounds,
        "recorded_over_wide": round(times["recorded"] / times["wide"], 3),
        "wide_over_plain": round(times["wide"] / times["plain"], 3),
    }


def passes(device: str, rows: int, rounds: int) -> dict[str, Any]:
    """Measures the rounding pass over `rows` rows of 4096 values, and draws of as many normal variates."""
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(rows, 4096, dtype=torch.float64, generator=generator).to(device)
    factors = (x.norm(dim=1, keepdim=True) * 2.0**-50, torch.ones(4096, dtype=torch.float64, device=device))
    bound, out = Bound(2.0**-50, 0.0, factors), torch.empty(x.shape, device=device)
    draw, where = Draw(SEED, 0, 0), torch.device(device)
    return {
        "elements": x.numel(),
        "rounding_pass": gpu_subjects.rounding_pass(device),
        "milliseconds": {
            "bare cast": median(lambda _: out.copy_(x), rounds, device),
            "recording pass": median(lambda _: device_passes.record(x, bound, out, cpu_kernels.REACH), rounds, device),
            "recording pass of PyTorch operations": median(
                lambda _: device_passes._record(x, bound, out, cpu_kernels.REACH), rounds, device
            ),
            "replaying pass": median(lambda _: device_passes.round_plain(x, out), rounds, device),
            "normal variates": median(lambda _: variates.normal(draw, x.numel(), where), rounds, device),
            "normal variates made on the CPU": median(
                lambda _: torch.from_numpy(philox.normal_float32(philox.words(SEED, 0, 0, x.numel()))).to(where),
                rounds,
                device,
            ),
        },
    }


def main() -> int:
    """Measures what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(SUBJECTS), help="measure this subject; may be repeated")
    parser.add_argument("--rounds", type=int, default=10, help="how many times each is measured")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU, nothing written")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.dry_run:
        print("DRY RUN: tiny sizes on the CPU, one round; no result is written", flush=True)
    else:
        gpu_subjects.require_cuda()
    device, rounds = ("cpu", 1) if options.dry_run else ("cuda", options.rounds)
    whole = machine.load("gpu_steps") or {}
    for name in ["passes", *(options.only or list(SUBJECTS))]:
        if name == "passes":
            result = passes(device, 8 if options.dry_run else 5000, rounds)
        else:
            result = steps(name, device, options.dry_run, rounds)
        print(f"{name}: {result}", flush=True)
        if not options.dry_run:
            torch.cuda.empty_cache()
            whole[name] = {**gpu_subjects.about(), **result}
            machine.save("gpu_steps", dict(sorted(whole.items())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
