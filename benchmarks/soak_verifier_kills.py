"""Kills Verifiers at random points of inspections: `python -m benchmarks.soak_verifier_kills [--seeds N] [--kills K]`.

Chips, trainings and a Prover are real processes: an honest run, an undeclared one, one with a second model
beside it, an idle chip and a dead one. One Verifier inspects them undisturbed. Then, for each seed, another one with a
database of its own is killed with SIGKILL up to K times, each time after it has said a random number of lines and a
random moment more, and started again. Its report must be the same but for times. Results go to
benchmarks/results/soak_verifier_kills.json after every seed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from support.kills import Verifier, essence
from support.populated_station import populate
from support.station import Station

from benchmarks import machine

JOBS = {"honest": "declared", "hidden": "hidden", "beside": "beside"}


def main() -> None:
    """Runs as many seeds as asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--kills", type=int, default=4)
    options = parser.parse_args()
    begun = time.monotonic()
    stages: Counter[str] = Counter()
    different = list[int]()
    with tempfile.TemporaryDirectory() as name, Station(Path(name)) as station:
        populate(station, JOBS, "idle")
        calm = Verifier(station, "calm")
        calm.start()
        started = time.monotonic()
        inspection = calm.begin()
        lines = sum(not line.passing for line in calm.watch(inspection))
        undisturbed = time.monotonic() - started
        report = essence(calm.report(inspection))
        calm.stop()
        for seed in range(options.first, options.first + options.seeds):
            verifier = Verifier(station, f"seed-{seed}", options=["--replay-devices", "cpu,cpu"])
            started = time.monotonic()
            inspection, at = verifier.disturbed(random.Random(seed), options.kills, lines)
            stages += Counter(at)
            if essence(verifier.report(inspection)) != report:
                different.append(seed)
            verifier.stop()
            save(options.first, seed + 1, stages, different, undisturbed, time.monotonic() - begun)
            print(f"seed {seed}: killed at {', '.join(at)}; {time.monotonic() - started:.0f} s", flush=True)
    if different:
        sys.exit(f"other reports than undisturbed: seeds {different}")


def save(first: int, end: int, stages: Counter[str], different: list[int], undisturbed: float, seconds: float) -> None:
    """Writes what was found so far."""
    result = {
        **machine.about(),
        "seeds": [first, end],
        "chips": len(JOBS) + 2,
        "kills": stages.total(),
        "stages": dict(sorted(stages.items())),
        "different": different,
        "undisturbed_seconds": round(undisturbed, 1),
        "seconds": round(seconds, 1),
    }
    machine.save("soak_verifier_kills", result)


if __name__ == "__main__":
    main()
