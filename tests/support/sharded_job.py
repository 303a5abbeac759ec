"""One rank of a very small training on several ranks, as a process.

`python sharded_job.py KIND RANK RANKS STORE OUT [STEPS]`, where STORE is a file that all ranks share. Kinds: `ddp`,
`tensor`, `fsdp`, `fsdp-tensor`, `pipeline`, `meta` (FSDP2 over modules that are initialised as shards), `primitives`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from prover import Job, Recorder
from prover.formulas import adamw, constant

WIDTH, CLASSES, ROWS = 8, 5, 4
FORMULAS = constant(1e-2) | adamw()
MESHES = {
    "fsdp-tensor": {"data": 2, "tensor": 2}, "tensor": {"tensor": 2}, "pipeline": {"pipeline": 2, "data": 1},
}  # fmt: skip

Built = tuple[nn.Module, torch.optim.Optimizer]
Batch = dict[str, torch.Tensor]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 12), nn.ReLU(), nn.Linear(12, CLASSES))


def batch_of(step: int, replica: int) -> Batch:
    generator = torch.Generator().manual_seed(1000 * step + replica)
    return {
        "x": torch.randn(ROWS, WIDTH, generator=generator),
        "y": torch.randint(0, CLASSES, (ROWS,), generator=generator),
    }


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def ddp(job: Job) -> Built:
    model = nn.parallel.DistributedDataParallel(network())
    return model, optimizer_of(model)


def tensor(job: Job) -> Built:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    model = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model, optimizer_of(model)


def fsdp(job: Job) -> Built:
    mesh = init_device_mesh("cpu", (job.place.job.ranks,), mesh_dim_names=("data",))
    model = network()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, optimizer_of(model)


def fsdp_tensor(job: Job) -> Built:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(network(), mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model[0], mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model, optimizer_of(model)


def meta(job: Job) -> Built:
    mesh = init_device_mesh("cpu", (job.place.job.ranks,), mesh_dim_names=("data",))
    with torch.device("meta"):
        model = network()
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return model, optimizer_of(model)


BUILDERS: dict[str, Callable[[Job], Built]] = {
    "ddp": ddp, "tensor": tensor, "fsdp": fsdp, "fsdp-tensor": fsdp_tensor, "meta": meta,
}  # fmt: skip


def train(kind: str, recorder: Recorder, job: Job, steps: int) -> None:
    with recorder.initialisation():
        model, optimizer = BUILDERS[kind](job)
    recorder.attach(model, optimizer)
    replica = job.place.coordinate("data")
    for step in range(1, steps + 1):
        batch = batch_of(step, replica)
        with recorder.step(batch):
            update(model, optimizer, batch)


def train_pipeline(recorder: Recorder, job: Job, steps: int) -> None:
    """Two stages with four microbatches each, by PyTorch's schedule of one forward, one backward."""
    rank = job.place.rank
    examples = torch.zeros(1, WIDTH), torch.zeros(1, 12, requires_grad=True)
    with recorder.initialisation():
        whole = network()
        module = nn.Sequential(*(whole[:2] if rank == 0 else whole[2:]))
        optimizer = optimizer_of(module)
    output = torch.zeros(1, 12 if rank == 0 else CLASSES, requires_grad=True)
    stage = PipelineStage(
        module, rank, 2, torch.device("cpu"), input_args=(examples[rank],), output_args=(output,)
    )  # fmt: skip
    schedule = Schedule1F1B(stage, n_microbatches=ROWS, loss_fn=nn.functional.cross_entropy)
    recorder.attach(module, optimizer)
    for step in range(1, steps + 1):
        batch = batch_of(step, 0)
        mine: Any = {"x": batch["x"]} if rank == 0 else {"y": batch["y"]}
        with recorder.step(mine):
            if rank == 0:
                schedule.step(mine["x"])
            else:
                schedule.step(target=mine["y"])
            optimizer.step()
            optimizer.zero_grad()


def main(kind: str, rank: int, ranks: int, store: str, out: str, steps: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    job = Job.from_environment(MESHES.get(kind))
    with Recorder(out, seed=7, job=job, formulas=FORMULAS, checkpoint_every=2) as recorder:
        if kind == "pipeline":
            train_pipeline(recorder, job, steps)
        else:
            train(kind, recorder, job, steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        arguments[0], int(arguments[1]), int(arguments[2]), arguments[3], arguments[4],
        int(arguments[5]) if len(arguments) > 5 else 3,
    )  # fmt: skip
