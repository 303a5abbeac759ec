"""Tries every attack of the catalogue over several seeds: `python -m benchmarks.redteam [--seeds 3] [--only WORDS]`.

The attacks are those of tests/redteam. Each is tried for real with seeds 1, 2, ...: recorded, committed to, signed,
shown on chips with real keys, and replayed in confined processes. Results go to benchmarks/results/redteam.json, row by
row, so that a run of some rows leaves the others as they were; then docs/redteam.md is written anew. `--missing` tries
the rows that were tried with fewer seeds so far, or not at all.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from redteam.catalogue import ROWS
from redteam.row import Row
from redteam.workshop import Workshop
from support.written_chips import Bench

from benchmarks import machine, redteam_page

NAME = "redteam"


def tried(row: Row, shop: Workshop, seeds: int) -> dict[str, Any]:
    """Tries a row with seeds 1 to `seeds`; returns what its entry of the result file says."""
    begun = time.monotonic()
    outcomes = [row.attack(shop, seed) for seed in range(1, seeds + 1)]
    played = [outcome.histories for outcome in outcomes if outcome.histories is not None]
    found = {
        "caught": sum(each.found for each in played),
        "histories": sum(each.of for each in played),
        "formula": played[0].formula,
    } if played else {"caught": sum(bool(outcome.findings) for outcome in outcomes)}  # fmt: skip
    return {
        **{name: machine.about()[name] for name in ("date", "threads")},
        "seeds": seeds,
        "as_said": sum(map(row.as_said, outcomes)),
        **found,
        "findings": sorted(set().union(*(outcome.findings for outcome in outcomes))),
        "gain": [outcome.gain for outcome in outcomes],
        "cost": [outcome.cost for outcome in outcomes],
        "control": [outcome.control for outcome in outcomes],
        "seconds": round(time.monotonic() - begun, 1),
    }


def main() -> None:
    """Tries the rows and writes result file and page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="rows whose name has these words")
    parser.add_argument("--missing", action="store_true", help="rows that were tried with fewer seeds, or not yet")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.update(machine.HERE)  # of the processes that are started
    torch.set_num_threads(1)
    known = (machine.load(NAME) or {}).get("rows", {})
    rows = {row.name: known[row.name] for row in ROWS if row.name in known}
    for row in ROWS:
        tried_before = rows.get(row.name, {}).get("seeds", 0)
        if options.only not in row.name or (options.missing and tried_before >= options.seeds):
            continue
        with tempfile.TemporaryDirectory() as folder, Bench(Path(folder)) as bench:
            rows[row.name] = tried(row, Workshop(bench), options.seeds)
        print(f"{row.name}: {rows[row.name]}", flush=True)
        machine.save(NAME, {**machine.about(), "rows": rows})
    redteam_page.main()


if __name__ == "__main__":
    main()
