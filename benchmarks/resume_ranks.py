"""One rank of a job whose processes may be killed at any moment and started again.

`python -m benchmarks.resume_ranks RUN KILL_AT WIDTH LOGS WAY RANK RANKS STORE` trains what `benchmarks.resume_job`
trains, each rank on records of its own, and averages gradients: by hand, or with DDP if WAY is `wrapped`. Ranks find
each other by STORE, a file that no other start has. The identifier of the job is fixed, so that transcripts of two
jobs can be the same.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.resume_job import Changes, Part, whole
from prover import Job
from weighbridge.transcript.job_record import rank_name


def average(model: nn.Module) -> None:
    """Averages the gradients of all ranks."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)


def main() -> None:
    """Trains once, from wherever an earlier start came to."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    run, way = Path(sys.argv[1]).resolve(), sys.argv[5]
    rank, ranks = int(sys.argv[6]), int(sys.argv[7])
    store, limit = f"file://{sys.argv[8]}", timedelta(seconds=60)  # by default, ranks wait half an hour for each other
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=limit)
    changes = Changes(str(run / rank_name(rank)), int(sys.argv[2]))
    print("ready", flush=True)
    job = Job.from_environment()
    job.coordinate = replace(job.coordinate, job=replace(job.coordinate.job, id=bytes(16)))
    part = Part(rank, exchange=average)
    if way == "wrapped":
        part = Part(rank, wrap=nn.parallel.DistributedDataParallel)
    programs = whole(run, int(sys.argv[3]), sys.argv[4], compiled=way == "compiled", job=job, part=part)
    print(changes.count, programs, flush=True)
    os._exit(0)  # what of the library's threads is left at exit may abort (docs/sharding.md)


if __name__ == "__main__":
    main()
