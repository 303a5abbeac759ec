"""What the fleet simulator costs: ten years of ten million chips, on two threads.

`python -m benchmarks.bench_simulator` plays each case of `benchmarks.simulate_decade` out in a process of its own and
notes its wall and processor time and its peak memory.

Results go to benchmarks/results/simulator.json.
"""

from __future__ import annotations

import os

from benchmarks import machine
from benchmarks.simulate_decade import CASES, CHIPS, CONFIDENCE, DECADE

WORKERS = 2


def main() -> None:
    """Measures and writes the result."""
    cases = []
    for name in CASES:
        load = os.getloadavg()[0]
        answer = machine.ask("benchmarks.simulate_decade", name, str(WORKERS), environment=machine.HERE)
        cases.append(answer | {"load_before": load})
        print(f"{name}: {answer['seconds']:.1f} s, {answer['peak_bytes'] / 2**30:.2f} GiB")
    machine.save(
        "simulator",
        {
            **machine.about(), "chips": CHIPS, "days": DECADE, "workers": WORKERS, "confidence": CONFIDENCE,
            "cases": cases,
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
