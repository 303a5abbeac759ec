"""What a sealed worker costs: its start, and the time of its replay over that of a plain replay of the same run.

`python -m benchmarks.bench_sealed` records GPT-2s of some sizes, replays each in the ordinary way and by a sealed
worker, in turn, and keeps the median of the rounds. The start is until the attestation is there; the replay is from
the first byte of the inputs to the outcome, so it includes their encryption, transfer and decryption. The ordinary
replay's process is forked from one that has loaded PyTorch, as in an inspection; both include its preparation, as far
as it comes after the question.

Results go to benchmarks/results/sealed.json.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from support.sealed_site import Station

from benchmarks import machine
from benchmarks.bench_shapes import Shape, record
from weighbridge.execution.replay import replay
from weighbridge.execution.sealed.building import build

SIZES = {"small": Shape(), "wide": Shape(width=512, rows=1), "long": Shape(width=512, rows=16)}
ROUNDS = 3


def sealed(station: Station) -> tuple[float, float]:
    """Runs one job; returns the seconds until the attestation was there, and from there to the outcome."""
    files = station.files()
    order = station.order(files)
    begin = time.perf_counter()
    worker = station.start(order)
    attested = worker.attested()
    started = time.perf_counter()
    station.prover.send(worker.stdin, order.terms(attested.worker), files, station.run)
    worker.stdin.close()
    outcome = worker.frame()
    done = time.perf_counter()
    assert outcome is not None, worker.ended()
    assert b'"verdict": "match"' in station.aggregator.open(outcome, order, attested.signer)
    worker.ended()
    return started - begin, done - started


def plain(run: Path) -> float:
    """Returns the seconds of an ordinary replay."""
    begin = time.perf_counter()
    assert replay(run).verdict == "match"
    return time.perf_counter() - begin


def measure(name: str, image: Path, rounds: int, place: Path) -> dict[str, Any]:
    """Measures one size."""
    run = place / "run"
    parameters = record(SIZES[name], "fp32 strict", run, "full")
    station = Station(place / "site", image, run)
    plain(run)  # the process that others are forked from starts once
    starts, jobs, replays = [], [], []
    for _ in range(rounds):
        start, job = sealed(station)
        starts.append(start)
        jobs.append(job)
        replays.append(plain(run))
    return {
        "parameters": parameters,
        "bytes": sum(each.size for each in station.files().files),
        "start_s": round(statistics.median(starts), 2),
        "sealed_s": round(statistics.median(jobs), 2),
        "plain_s": round(statistics.median(replays), 2),
        "over_plain": round(statistics.median(jobs) / statistics.median(replays), 3),
        "rounds": [[round(each, 2) for each in row] for row in zip(starts, jobs, replays, strict=True)],
    }


def main() -> None:
    """Measures the sizes that are named, all by default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        image = Path(directory) / "image"
        listed = build(image)
        result: dict[str, Any] = {
            **machine.about(), "image_files": len(listed.files), "image_bytes": listed.size, "sizes": {}
        }  # fmt: skip
        for name in arguments.sizes:
            place = Path(directory) / name
            place.mkdir()
            result["sizes"][name] = measure(name, image, arguments.rounds, place)
            print(name, result["sizes"][name], flush=True)
    machine.save("sealed", result)


if __name__ == "__main__":
    main()
