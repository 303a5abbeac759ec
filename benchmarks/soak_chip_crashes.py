"""Crashes honest trainings on chips at random moments and inspects them: no Prover may be accused.

`python -m benchmarks.soak_chip_crashes [--jobs N] [--seed N]` runs `benchmarks.honest_job` in processes of its own,
each on a chip that interrupts about once a second. Every second one dies right after the chip has signed a snapshot
in the middle of a step, the others after a random time. Every third is resumed and ends well; the others stay as they
are. Then one inspection reads all chips. Results go to benchmarks/results/chip_crashes.json.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import machine
from weighbridge.cli.demo.station import RunningChip, station

JOB = "benchmarks.honest_job"
RATE_PER_DAY = 1.0
PER_SECOND = 1.0
"""Interrupts."""


def crash(
    run: Path, chip: RunningChip, when: str, *options: str, environment: machine.Environment = machine.HERE
) -> None:
    """Trains until it dies; `options` are further ones of the job.

    Raises:
        RuntimeError: The program ended by itself.
    """
    process = machine.start(
        JOB, str(run), str(chip.socket), "--die", when, *options,
        environment=environment, stderr=subprocess.PIPE, errors="replace",
    )  # fmt: skip
    _, errors = process.communicate()
    if process.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the program was not killed: {errors.strip().splitlines()[-1:]}")


def finish(
    run: Path, chip: RunningChip, *options: str, environment: machine.Environment = machine.HERE
) -> dict[str, int]:
    """Trains to the end, from wherever an earlier start came to; `options` are further ones of the job.

    Returns:
        How many steps of this start were recorded in which way, as the job says.

    Raises:
        RuntimeError: The program failed.
    """
    process = machine.start(JOB, str(run), str(chip.socket), *options, environment=environment)
    said: dict[str, int] = machine.answer(process)
    return said


def inspect(jobs: int, seed: int, out: Path, per_second: float = PER_SECOND) -> dict[str, Any]:
    """Crashes so many jobs and returns the report of the inspection.

    Args:
        jobs: How many, each on a chip of its own.
        seed: Chooses the moments.
        out: New directory for everything.
        per_second: Interrupts of each chip.
    """
    choose = random.Random(seed)
    names = [f"job{number}" for number in range(jobs)]
    speed = 86_400.0 * per_second / RATE_PER_DAY
    with station(out / "station", runs=out, chips=names, rate_per_day=RATE_PER_DAY, clock_speed=speed) as running:
        for number, chip in enumerate(running.chips):
            crash(out / chip.name, chip, "signed" if number % 2 == 0 else f"{choose.uniform(0.05, 1.5):.3f}")
            if number % 3 == 2:
                finish(out / chip.name, chip)
        identifier = running.operator.start(
            samples=jobs, seed=bytes(32), flops_threshold=2.0, chip_flops_per_day=1.0, period_days=2.0,
            snapshot_rate_per_day=RATE_PER_DAY, replay_env={"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        for _ in running.operator.watch(identifier):
            pass
        return running.operator.report(identifier)


def main() -> int:
    """Runs the soak; returns 1 if a Prover was accused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="weighbridge-crashes-") as directory:
        report = inspect(options.jobs, options.seed, Path(directory))
    accused = [finding for finding in report["findings"] if finding["severity"] == "violation"]
    statuses = Counter(snapshot["status"] for chip in report["chips"] for snapshot in chip["snapshots"])
    found = Counter(finding["id"] for finding in report["findings"])
    result = {
        **machine.about(), "seed": options.seed, "jobs": options.jobs, "resumed": options.jobs // 3,
        "snapshots": dict(sorted(statuses.items())), "findings": dict(sorted(found.items())),
        "accused": len(accused), "verified_chips": report["counts"]["verified"],
        "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip
    machine.save("chip_crashes", result)
    print(result, flush=True)
    for finding in report["findings"]:
        if finding["severity"] != "info":
            print(finding, flush=True)
    return 1 if accused else 0


if __name__ == "__main__":
    raise SystemExit(main())
