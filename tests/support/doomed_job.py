"""One rank of a data-parallel training that goes on until it is killed: `doomed_job.py RANK RANKS OUT SOCKET`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from support.sharded_job import FORMULAS, train

from firmware_sim import Shim
from prover import Job, Recorder


def main(rank: int, ranks: int, out: Path, socket: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out / 'store'}", rank=rank, world_size=ranks)
    job = Job.from_environment()
    with (
        Shim.connect(socket) as chip,
        Recorder(out / "job", seed=7, job=job, chip=chip, formulas=FORMULAS, checkpoint_every=4) as recorder,
    ):
        train("ddp", recorder, job, 1 << 30, chip)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
