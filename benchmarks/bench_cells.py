"""What it costs to check a sharded job: all of it, one cell, chunks of its collectives; against the number of ranks.

`python -m benchmarks.bench_cells [--ranks 2 4 8]` records data-parallel trainings (DDP over gloo) of a perceptron with
1.3 million weights on this machine, one process a rank, and measures in processor seconds, without workers' start:

- the replay of the whole job on virtual ranks, and of one cell (rank 0, all steps after the initialisation) with its
  collectives taken as given;
- the check of opened chunks: seconds and bytes a chunk, which grow with the ranks because every rank's contribution is
  opened;
- on two ranks that agree on a false all-reduce: how often k random chunks find it, against 1 - (1 - q)^k.

Results go to benchmarks/results/cells.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks import machine
from prover import Job, Recorder
from prover.keeping import collective_replay
from weighbridge.execution import collective_openings
from weighbridge.execution.collective_openings import Commitments
from weighbridge.execution.given_terms import GIVEN
from weighbridge.execution.workers.job_worker import JobReplay
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.numerics.conformance.switches import conforming
from weighbridge.transcript.collectives import CHUNK
from weighbridge.transcript.job_record import rank_name, read_job
from weighbridge.transcript.tensor_file import TensorFile, write_tensors

STEPS, ROWS, WIDTH, HIDDEN = 3, 16, 256, 1024
FALSE_SHARE = 0.05
TRIALS = 2000
COUNTS = (5, 20, 50, 100)


class FalseJob(Job):
    """A job whose ranks agree on a false sum of gradients in step 2, and keep what that takes."""

    sums = 0
    kept: dict[str, torch.Tensor]

    def exchange(self, group: Any, name: str, outs: Any, ins: Any, reduction: str, root: int, tag: int) -> None:
        """Exchanges, and falsifies a share of the chunks of one all-reduce."""
        given = [t.detach().clone().reshape(-1) for t in ins]
        super().exchange(group, name, outs, ins, reduction, root, tag)
        if name == "all_reduce":
            self.sums += 1
            if self.sums == 2:
                chunks = -(-outs[0].numel() * 4 // CHUNK)
                outs[0].view(-1)[: round(FALSE_SHARE * chunks) * CHUNK // 4] += 1.0
                self.kept = {"in": given[0], "out": outs[0].detach().clone().reshape(-1)}


def rank_process(rank: int, ranks: int, out: Path, false: bool) -> None:
    """Records one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}-store", rank=rank, world_size=ranks)
    job = Job.from_environment()
    if false:
        job.__class__ = FalseJob
    with Recorder(out, seed=3, job=job) as recorder:
        with recorder.initialisation():
            net = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
            model = nn.parallel.DistributedDataParallel(net.append(nn.Linear(HIDDEN, 10)), bucket_cap_mb=64)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        recorder.attach(model, optimizer)
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(1000 * step + rank)
            batch = {
                "x": torch.randn(ROWS, WIDTH, generator=generator),
                "y": torch.randint(0, 10, (ROWS,), generator=generator),
            }
            with recorder.step(batch):
                loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
    if isinstance(job, FalseJob):
        write_tensors(Path(f"{out}-kept-{rank}"), job.kept)
    sys.stdout.flush()
    os._exit(0)  # the library's threads may abort an interpreter that ends


def record(ranks: int, out: Path, false: bool = False) -> None:
    """Records a job, one process a rank."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.bench_cells", "--out", str(out), "--of", str(ranks)]
    processes = [
        subprocess.Popen([*command, "--rank", str(rank), *(["--false"] if false else [])]) for rank in range(ranks)
    ]
    if any([process.wait() for process in processes]):
        raise RuntimeError("a rank failed")


def timed(function: Any) -> tuple[float, Any]:
    """Returns (processor seconds, result) of a call, the faster of two: the first may have to load compiled code."""
    seconds = []
    for _ in range(2):
        begin = time.process_time()  # one thread computes, and other work on the machine does not count
        with torch.no_grad(), conforming():
            result = function()
        seconds.append(time.process_time() - begin)
    return min(seconds), result


def measure(ranks: int, directory: Path) -> dict[str, Any]:
    """Records a job on so many ranks and measures its checks."""
    path = directory / f"job-{ranks}"
    record(ranks, path)
    request: dict[str, Any] = {
        "path": str(path), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 8 << 30,
    }  # fmt: skip
    whole, found = timed(lambda: JobReplay(request, [], lambda message: None).run())
    results = directory / "results"
    collective_replay.cell_results(path, 0, (1, STEPS + 1), results)
    coordinate = [read_job(path).encode().hex(), 0]
    cell_request = {**request, "path": str(path / rank_name(0)), "coordinate": coordinate, "steps": [1, STEPS + 1]}
    cell_request["results"] = str(results)
    cell, answer = timed(lambda: Replay(cell_request, [], lambda message: None).run())
    commitments = Commitments(path)
    targets = list(commitments.targets(0, (1, STEPS + 1)))
    chosen = random.Random(1).choices(targets, k=100)
    opened = collective_replay.open_chunks(path, 0, chosen)
    checking, findings = timed(lambda: collective_openings.verify(commitments, 0, chosen, opened))
    return {
        "ranks": ranks,
        "verdicts": [found["verdict"], answer["verdict"]],
        "whole_job_seconds": round(whole, 3),
        "cell_seconds": round(cell, 3),
        "chunks_of_cell": len(targets),
        "chunk_check_milliseconds": round(1000 * checking / len(opened), 3),
        "chunk_opening_bytes": len(collective_openings.encode(opened)) // len(opened),
        "chunk_findings": len(findings),
    }


def power(directory: Path) -> dict[str, Any]:
    """Measures how often chunks find a false sum that two ranks agree on."""
    path = directory / "false"
    record(2, path, false=True)
    commitments = Commitments(path)
    kept = {}
    for rank in (0, 1):
        file = TensorFile(Path(f"{path}-kept-{rank}"))
        pairing = next(p for p, c in commitments.step(rank, 2).items() if c.call.name == "all_reduce")
        kept[rank, pairing] = [file.read("in")], [file.read("out")]
    op = next(c.call.op for c in commitments.step(0, 2).values() if c.call.name == "all_reduce")
    targets = [t for t in commitments.targets(0, (2, 3)) if t.op == op]
    opened = collective_replay.opened(commitments, 0, targets, kept)
    false = sum(bool(collective_openings.verify(commitments, 0, [t], opened)) for t in targets)
    share = false / len(targets)
    rows = []
    for count in COUNTS:
        draws = (random.Random(count * TRIALS + trial).choices(targets, k=count) for trial in range(TRIALS))
        caught = sum(bool(collective_openings.verify(commitments, 0, draw, opened)) for draw in draws)
        rows.append({"chunks": count, "caught": caught / TRIALS, "formula": round(1 - (1 - share) ** count, 4)})
    return {"false_chunks": false, "chunks": len(targets), "share": round(share, 4), "trials": TRIALS, "rows": rows}


def main() -> int:
    """Measures; returns 1 if something did not match."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--false", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.rank is not None:
        rank_process(arguments.rank, arguments.of, arguments.out, arguments.false)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        rows = [measure(ranks, Path(directory)) for ranks in arguments.ranks]
        found = {**machine.about(), "jobs": rows, "power": power(Path(directory))}
    print(json.dumps(found, indent=1))
    if arguments.ranks == [2, 4, 8]:
        machine.save("cells", found)
    return int(any(row["verdicts"] != ["match", GIVEN] or row["chunk_findings"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
