"""What a verifiable draw costs with a million chips: for the Verifier, and for a reader who recomputes it.

`python -m benchmarks.bench_draw [--chips 1000000] [--samples 10000]` makes a population of owners, sites and chip types
with heads of all logs but a few, and takes the steps of a draw with a log and a beacon of its own. It never waits: the
clock is turned. The steps run in one process, and its peak memory is read after each.

Results go to benchmarks/results/draw.json.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import machine
from verifier.draw.derivation import close_draw, commit_draw, detection, open_draw
from verifier.draw.log_entries import Aim
from verifier.draw.own_log import PREFIX, OwnLog
from verifier.draw.recomputation import Trusted, verify_draw
from verifier.draw.record import DrawRecord, Logged, read_record, write_files
from verifier.model.strata import Population, encode_heads
from verifier.store import revision
from verifier.store.database import Database
from weighbridge.attest import tlog
from weighbridge.attest.beacon import LocalBeacon
from weighbridge.attest.tlog import NoteSigner

T = TypeVar("T")
START = 1_800_000_000
OWNERS, SITES, TYPES = 8, 5, 3
SILENT = 1000
"""One chip in so many has no head."""


@dataclass
class Bench:
    """Times steps."""

    steps: dict[str, dict[str, float]]

    def time(self, name: str, work: Callable[[], T]) -> T:
        """Does a step and notes its seconds, and the most memory that the process had by its end."""
        wall, cpu = time.perf_counter(), time.process_time()
        done = work()
        self.steps[name] = {
            "wall_s": round(time.perf_counter() - wall, 3),
            "cpu_s": round(time.process_time() - cpu, 3),
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        return done


def chips(count: int) -> list[tuple[bytes, str, str, str]]:
    """Returns chips in no order."""
    chance = random.Random(7)
    return [
        (
            b"\x01" + chance.randbytes(16),
            f"owner {chance.randrange(OWNERS)}",
            f"site {chance.randrange(SITES)}",
            f"type {chance.randrange(TYPES)}",
        )
        for _ in range(count)
    ]


def measure(count: int, samples: int, path: Path) -> dict[str, Any]:
    """Takes every step of one draw."""
    bench, now = Bench({}), [START + 1000.0]
    registered = chips(count)
    population = bench.time("population", lambda: Population.of(registered))
    heads = {ueid: (5, ueid[:16] * 2) for place, ueid in enumerate(population.ueids) if place % SILENT}
    beacon = bench.time("beacon_key", lambda: LocalBeacon.load(path / "beacon", period_s=1, clock=lambda: now[0]))
    database = Database(path / "log.sqlite")
    revision.prepare(database)
    witness = NoteSigner("bench/witness", tlog.WITNESS, bytes(32))
    log = OwnLog(database.session, NoteSigner(PREFIX + "bench", tlog.LOG, bytes(32)), [witness], lambda: now[0])
    aim = Aim(
        flops_threshold=1e24, chip_flops_per_day=8e19, period_days=30.0, snapshot_rate_per_day=0.1,
        speeds={"type 0": 1.6e20},
    )  # fmt: skip
    committed = bench.time(
        "commit",
        lambda: commit_draw(
            inspection="bench", population=population, registry_root=bytes(32), registry_size=count, samples=samples,
            aim=aim, beacon=beacon.info, now_ms=int(now[0] * 1000), cutoff_ms=int(now[0] * 1000) + 5000,
            margin_ms=60_000, by=("owner", "site", "type"), allocation="optimal",
        ),
    )  # fmt: skip
    first = log.append(committed.commitment.encode())
    now[0] += 10
    closing, kept = bench.time("close", lambda: close_draw(committed.commitment, population, heads, int(now[0] * 1000)))
    second = log.append(closing.encode())
    now[0] = beacon.info.time_ms(committed.commitment.round) / 1000 + 0.5
    value = beacon.value(committed.commitment.round)
    assert value is not None
    drawn = bench.time("open", lambda: open_draw(committed, closing, population, kept, beacon.info, value))
    third = log.append(drawn.opening.encode())
    worth = bench.time("probability", lambda: detection(drawn, drawn.chips))
    record = DrawRecord(
        log=log.key, witnesses=(witness.key,), commitment=Logged(data=log.entry(first), proof=log.prove(first)),
        closing=Logged(data=log.entry(second), proof=log.prove(second)),
        opening=Logged(data=log.entry(third), proof=log.prove(third)), beacon=beacon.info, value=value,
        population=population.text, heads=encode_heads(kept), certain=tuple(drawn.certain), drawn=tuple(drawn.random),
    )  # fmt: skip
    files = bench.time("record", record.files)
    write_files(path / "draw", files)
    shown = bench.time("read", lambda: read_record(path / "draw"))
    trusted = Trusted(
        now_ms=int(now[0] * 1000), log=log.key, witnesses=[witness.key],
        whole_log=(dict(log.files())["checkpoint"], log.entries()),
    )  # fmt: skip
    findings = bench.time("verify", lambda: verify_draw(shown, trusted))
    database.close()
    return {
        "chips": count, "strata": len(drawn.strata), "samples": len(drawn.random), "certain": len(drawn.certain),
        "p": worth["p"], "findings": len(findings), "record_bytes": sum(len(data) for _, data in files),
        "steps": bench.steps,
    }  # fmt: skip


def main() -> None:
    """Measures and saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chips", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = {**machine.about(), **measure(options.chips, options.samples, Path(directory))}
    machine.save("draw", result)
    print(result)


if __name__ == "__main__":
    main()
