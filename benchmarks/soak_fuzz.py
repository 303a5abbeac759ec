"""Hostile tapes for as long as one likes: `python -m benchmarks.soak_fuzz [--minutes N] [--seed S]`.

Changed steps of recorded runs, bent calls of the rules' examples, and invented calls run in confined processes. Some
are executed twice, once more as straight-line programs, which must come to the same.
The result, benchmarks/results/fuzz.json, counts the outcomes; it names the seed of every case that killed its process,
hung or raised something else than a finding. There should be none.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from support.fuzzing import Child, acceptable, record_runs

from benchmarks import machine

KINDS = {
    "recorded steps": 0,
    "bent calls": 1,
    "invented calls": 2,
    "recorded steps, twice": 4,
    "bent calls, twice": 5,
}
"""What is made of a case, and how the child calls it (`tests/support/fuzz_child.py`)."""

PERIOD = 20_000
"""Cases after which a process is replaced."""


def kind_of(seed: int) -> str:
    """What is made of a case."""
    return list(KINDS)[seed % len(KINDS)]


def choices(seed: int) -> list[int]:
    """The decisions of one case."""
    numbers = random.Random(seed)
    return [KINDS[kind_of(seed)], *(numbers.getrandbits(32) for _ in range(60))]


def main() -> None:
    """Runs until the time is up and writes the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    options = parser.parse_args()
    outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    gaps: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        child = Child(record_runs(Path(folder)))
        begun = time.monotonic()
        seed = options.seed
        while time.monotonic() - begun < 60 * options.minutes:
            answer = child.ask(choices(seed))
            code = str(answer.get("outcome") or next(k for k in ("died", "hangs", "bug", "unmade") if k in answer))
            outcomes[kind_of(seed)][code] += 1
            if not acceptable(answer):
                gaps.append({"seed": seed, **answer})
                print(gaps[-1], flush=True)
            seed += 1
            if seed % PERIOD == 0:
                child.stop()
        child.stop()
    result = {
        **machine.about(),
        "seeds": [options.seed, seed],
        "minutes": round((time.monotonic() - begun) / 60, 1),
        "outcomes": {kind: dict(counts.most_common()) for kind, counts in outcomes.items()},
        "gaps": gaps,
    }
    machine.save("fuzz", result)


if __name__ == "__main__":
    main()
