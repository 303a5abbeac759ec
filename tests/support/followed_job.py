"""One rank of a small training that is followed: `torchrun ... followed_job.py KIND OUT`.

Kinds: `ddp` (DDP with dropout and a running average over the ranks; only rank 0 evaluates and saves), `smuggle` (the
same; then rank 0 sends other weights as a Python object, and both ranks take them), `tamper` (rank 1 changes its
weights by no operation), `early` (`follow` before there is a process group), `tensor` (tensor parallelism), `load`
(FSDP2; a checkpoint is read back on the way), `on-demand` (as `ddp`, with logs on demand).
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import prover

ROWS = np.random.default_rng(0).standard_normal((32, 16), dtype=np.float32)


def other_weights(model: nn.Module) -> None:
    """Takes weights from rank 0 that no training made."""
    brought: list[list[np.ndarray]] = [[np.full(tuple(p.shape), 0.25, dtype=np.float32) for p in model.parameters()]]
    dist.broadcast_object_list(brought)
    with torch.no_grad():
        for parameter, array in zip(model.parameters(), brought[0], strict=True):
            parameter.copy_(torch.from_numpy(array))


def change_unseen(model: nn.Module) -> None:
    """Writes to memory directly, by no operation."""
    ctypes.memset(next(model.parameters()).data_ptr(), 0, 4)


def train(kind: str, out: Path) -> None:
    """Trains for two epochs."""
    data = TensorDataset(torch.from_numpy(ROWS), torch.from_numpy(ROWS[:, :4].argmax(1)))
    inner = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler = DistributedSampler(data)
    training, average = DataLoader(data, batch_size=4, sampler=sampler), torch.zeros(())
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in training:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            average.lerp_(mean, 0.1)
        if dist.get_rank() == 0:
            inner.eval()
            with torch.no_grad():
                right = sum(int((inner(x).argmax(1) == y).sum()) for x, y in DataLoader(data, batch_size=8))
            print(f"epoch {epoch}: {right} right")
            torch.save(inner.state_dict(), out.with_name(f"{out.name}.pt"))
        if kind == "smuggle" and epoch == 0:
            other_weights(inner)
        if kind == "tamper" and dist.get_rank() == 1:
            change_unseen(inner)


def train_sharded(kind: str, out: Path) -> None:
    """Trains a network whose weights are spread over the ranks."""
    data = TensorDataset(torch.from_numpy(ROWS), torch.from_numpy(ROWS[:, :4].argmax(1)))
    model: nn.Module = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    if kind == "tensor":
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
        model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    else:
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number, (x, y) in enumerate(DataLoader(data, batch_size=4)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if kind == "load" and number == 2:
            dcp.save({"model": model}, checkpoint_id=f"{out}-checkpoint")
        if kind == "load" and number == 5:
            dcp.load({"model": model}, checkpoint_id=f"{out}-checkpoint")


def main(kind: str, out: Path) -> None:
    torch.set_num_threads(1)
    if kind == "early":
        with prover.follow(out):
            dist.init_process_group("gloo")
            train(kind, out)
        return
    dist.init_process_group("gloo")
    later: dict[str, Any] = {"logs": "on-demand", "device": "cpu"} if kind == "on-demand" else {}
    with prover.follow(out, seed=7, mesh={"tensor": 2} if kind == "tensor" else None, **later):
        (train_sharded if kind in ("tensor", "load") else train)(kind, out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
