"""What an entry of a rounding log costs beside its entropy, and what honest logs bring in between instruction sets.

`python -m benchmarks.bench_entries [--steps N] [--only NAME ...]` records each model in the precisions of
`benchmarks.bench_logs`, decodes and encodes its logs again, and replays the run here and with other instruction sets.

The *floor* is the entropy of a log if within an output positions were independent, each contested with the output's own
share, and k and the bits were independent with the output's own frequencies. (A code that follows how the shares change
within an output may go below it.) Speeds are of one thread's processor time, the best of five.

Results go to benchmarks/results/entries.json, unless only some models were measured.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import machine
from benchmarks.bench_logs import NAMES, PRECISIONS, SEED, recorded
from weighbridge.execution.replay import replay
from weighbridge.numerics.rounding import rounding_log
from weighbridge.numerics.rounding.rounding_log import OpEntries

PLACES = {"here": machine.HERE, **machine.ELSEWHERE}


def _entropy(values: npt.NDArray[Any]) -> float:
    """Bits that the values take together if each is coded by its frequency among them."""
    counts = np.unique(values, return_counts=True)[1]
    return float(-(counts * np.log2(counts / counts.sum())).sum())


def floor(section: OpEntries) -> float:
    """Bits of a section's entries as defined above."""
    count, span = len(section.positions), int(section.positions[-1]) + 1
    share = count / span
    positions = -(count * np.log2(share) + (span - count) * np.log2(1 - share)) if count < span else 0.0
    whole = section.widths == 0
    bits = _entropy(section.bits[whole])
    for k in np.unique(section.widths[~whole]).tolist():
        chosen = section.bits[section.widths == k]
        bits += min(_entropy(chosen), _entropy(chosen == 0) + float(k) * int((chosen != 0).sum()))
    return float(positions) + _entropy(section.widths) + bits


def _rate(entries: int, work: Callable[[], Any]) -> float:
    """Millions of entries a second."""
    best = 1e9
    for _ in range(5):
        start = time.thread_time()
        work()
        best = min(best, time.thread_time() - start)
    return round(entries / best / 1e6, 1)


def measure(name: str, precision: str, steps: int) -> dict[str, Any]:
    """Records, encodes again and replays one model in one precision."""
    with recorded(name, precision, steps) as transcript:
        records = [transcript.step(number) for number in range(1, transcript.steps)]
        data = [transcript.rounding(record.step) for record in records]
        logs = [rounding_log.decode(log, max_entries=record.logged) for log, record in zip(data, records, strict=True)]
        if any(rounding_log.encode(log) != again for log, again in zip(logs, data, strict=True)):
            raise RuntimeError("a log was encoded in another way than it was recorded")
        entries = sum(record.logged for record in records)
        found: dict[str, Any] = {"steps": steps, "rounded": sum(r.rounded for r in records), "entries": entries}
        if entries:
            found |= {
                "bits_per_entry": round(8 * sum(len(log) for log in data) / entries, 3),
                "floor_per_entry": round(sum(floor(s) for log in logs for s in log) / entries, 3),
                "encode_millions": _rate(entries, lambda: [rounding_log.encode(log) for log in logs]),
                "decode_millions": _rate(entries, lambda: [rounding_log.decode(d, max_entries=1 << 40) for d in data]),
                "width_above_8": sum(int((s.widths > 8).sum()) for log in logs for s in log),
            }
        found["replays"] = {place: _replayed(transcript.path, environment) for place, environment in PLACES.items()}
    return found


def _replayed(path: Path, environment: machine.Environment) -> dict[str, Any]:
    result = replay(path, env=environment)
    counts = ("rounded", "entries", "overruled", "bits", "bits_in", "wide", "wide_bits", "wide_bits_in")
    found: dict[str, Any] = {name: round(result.evidence[name]) for name in counts}
    p = {name: float(f"{test['p']:.2g}") for name, test in result.evidence["tests"].items()}
    return {"verdict": result.verdict, **found, "p": p}


def main() -> None:
    """Measures every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="this model; may be repeated")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    result: dict[str, Any] = {**machine.about(), "seed": SEED, "models": {}}
    for name in options.only or NAMES:
        result["models"][name] = {p: measure(name, p, options.steps) for p in PRECISIONS}
        for precision, m in result["models"][name].items():
            print(name, precision, {k: v for k, v in m.items() if k != "replays"}, flush=True)
            for place, r in m["replays"].items():
                print("   ", place, r, flush=True)
    if not options.only:
        machine.save("entries", result)


if __name__ == "__main__":
    main()
