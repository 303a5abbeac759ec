"""One rank of very small trainings on several ranks: `python sharded_job.py KIND[,KIND...] RANK RANKS OUT [SOCKET]`.

With `--logs=LOGS` its rounding logs are of another kind than in full; with `--beacon=DIRECTORY` all segments are due
while it goes on, by the beacon whose values are there. All ranks share the directory OUT, where each job
gets a directory of its kind's name. Kinds: `ddp`, `unused` (some parameters are not used by all ranks in all steps),
`static` (a static graph), `accumulate` (two backward passes for one synchronisation, gradients as views of buckets),
`tied` (DDP over `tied_rows.py`), `narrow` (DDP with wide layers under autocast in bfloat16), `narrow-fsdp` (FSDP2 of
them, whose weights are gathered and whose gradients are summed in bfloat16), `tensor`, `fsdp`, `fsdp-tensor`,
`pipeline`, `meta` (FSDP2 over modules that are initialised as shards), `primitives` (every collective), those of
`job_updates.py`,
`cut` (DDP; rank 1 is killed in step 3 when it has contributed everything and before it has recorded the step),
`wide` (DDP with more weights than ranks combine whole), `false` (the same, but the ranks agree on a false all-reduce in
step 2, and keep what they exchanged in `OUT/kept-RANK`), `lying` (the same, but one rank sums its share falsely). On a
chip, at SOCKET, a snapshot is forced before the optimizer updates the weights in step 2.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

try:
    from support.job_updates import UPDATES
    from support.tied_rows import ones, square, ties
except ImportError:  # run as a program
    from job_updates import UPDATES  # type: ignore[import-not-found, no-redef]
    from tied_rows import ones, square, ties  # type: ignore[import-not-found, no-redef]

from firmware_sim import Shim
from prover import Job, Recorder, Repeats
from prover.formulas import adamw, constant
from weighbridge.transcript.collectives import CHUNK
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.tensor_file import write_tensors

STEPS = 3
FALSE_CHUNKS = 4
LIAR = 2
LOGS, BEACON = "--logs=", "--beacon="
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


def committed(replica: int) -> DataCommitment:
    """What a rank commits to: the records of its own batches, in their order."""
    batches = [batch_of(step, replica) for step in range(1, STEPS + 1)]
    rows = [{name: t[i] for name, t in batch.items()} for batch in batches for i in range(ROWS)]
    return DataCommitment.over(rows, range(len(rows)))


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


class Branches(nn.Module):
    """Ranks take different ways in step 2, and all take the second one from step 3 on; one layer is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList([nn.Linear(WIDTH, 12), nn.Linear(WIDTH, 12)])
        self.last, self.never = nn.Linear(12, CLASSES), nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        way = (0, dist.get_rank(), 1)[min(self.calls, 3) - 1]
        hidden: torch.Tensor = self.last(self.ways[way](x).relu())
        return hidden


def tied(job: Job) -> Built:
    model, _ = ones()
    wrapped = nn.parallel.DistributedDataParallel(model)
    return wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.0)


def narrow(job: Job) -> Built:
    model = nn.parallel.DistributedDataParallel(layers())
    return model, optimizer_of(model)


def narrow_fsdp(job: Job) -> Built:
    mesh = init_device_mesh("cpu", (job.coordinate.job.ranks,), mesh_dim_names=("data",))
    model = layers()
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    return model, optimizer_of(model)


def layers() -> nn.Sequential:
    """Layers wide enough that other kernels round some of their results otherwise."""
    return nn.Sequential(nn.Linear(300, 400), nn.GELU(), nn.Linear(400, 300), nn.Tanh(), nn.Linear(300, 10))


def wide_rows(step: int, replica: int) -> Batch:
    return {"x": torch.randn(128, 300, generator=torch.Generator().manual_seed(1000 * step + replica))}


def narrow_update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(batch["x"]).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def unused(job: Job) -> Built:
    model = nn.parallel.DistributedDataParallel(Branches(), find_unused_parameters=True)
    return model, optimizer_of(model)


def static(job: Job) -> Built:
    model = nn.parallel.DistributedDataParallel(network(), static_graph=True)
    return model, optimizer_of(model)


def cut(job: Job) -> Built:
    model, optimizer = ddp(job)
    updates = itertools.count(1)

    def die(*_: object) -> None:
        if next(updates) == STEPS and job.coordinate.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    optimizer.register_step_pre_hook(die)
    return model, optimizer


def accumulate(job: Job) -> Built:
    model = nn.parallel.DistributedDataParallel(network(), gradient_as_bucket_view=True)
    return model, optimizer_of(model)


def tensor(job: Job) -> Built:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    model = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model, optimizer_of(model)


def fsdp(job: Job) -> Built:
    mesh = init_device_mesh("cpu", (job.coordinate.job.ranks,), mesh_dim_names=("data",))
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
    mesh = init_device_mesh("cpu", (job.coordinate.job.ranks,), mesh_dim_names=("data",))
    with torch.device("meta"):
        model = network()
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return model, optimizer_of(model)


def plain(job: Job) -> Built:
    model = network()
    return model, optimizer_of(model)


def held(job: Job) -> Built:
    model = network()
    model.register_buffer("shift", torch.zeros(WIDTH))
    return model, optimizer_of(model)


def scaled(job: Job) -> Built:
    model = network()
    model.first = nn.Parameter(torch.eye(WIDTH))
    return model, optimizer_of(model)


def apart(job: Job) -> Built:
    model = network()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + job.coordinate.rank)
    return model, optimizer_of(model)


BUILDERS: dict[str, Callable[[Job], Built]] = dict.fromkeys(UPDATES, plain) | {
    "ddp": ddp, "tied": tied, "unused": unused, "static": static, "accumulate": accumulate, "cut": cut,
    "tensor": tensor, "fsdp": fsdp, "fsdp-tensor": fsdp_tensor, "meta": meta, "held": held, "apart": apart,
    "sent-again": scaled, "sent-other": scaled, "narrow": narrow, "narrow-fsdp": narrow_fsdp,
}  # fmt: skip


BATCHES: dict[str, Callable[[int, int], Any]] = {
    "tied": lambda step, replica: ties(10 * step + replica), "narrow": wide_rows, "narrow-fsdp": wide_rows,
}  # fmt: skip
OWN_UPDATES: dict[str, Callable[[Any, Any, Any], None]] = {
    "tied": lambda model, optimizer, batch: square(batch, model, optimizer),
    "narrow": narrow_update, "narrow-fsdp": narrow_update,
}  # fmt: skip


def train(kind: str, recorder: Recorder, job: Job, steps: int, chip: Shim | None = None) -> None:
    with recorder.initialisation():
        model, optimizer = BUILDERS[kind](job)
    if chip is not None:
        chip.declare_weights(model.parameters())
        optimizer.register_step_pre_hook(lambda *_: chip.request_snapshot() if recorder.step_number == 2 else None)
    recorder.attach(model, optimizer)
    replica = job.coordinate.along("data")
    for step in range(1, steps + 1):
        batch = BATCHES.get(kind, batch_of)(step, replica)
        with recorder.step(batch):
            if kind == "accumulate" and isinstance(model, nn.parallel.DistributedDataParallel):
                with model.no_sync():
                    nn.functional.cross_entropy(model(batch["x"] * 0.5), batch["y"]).backward()
            OWN_UPDATES.get(kind, UPDATES.get(kind, update))(model, optimizer, batch)


def train_pipeline(recorder: Recorder, job: Job, steps: int) -> None:
    """Two stages with four microbatches each, by PyTorch's schedule of one forward, one backward."""
    rank = job.coordinate.rank
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


class KeepingJob(Job):
    """A job whose ranks keep what they exchanged."""

    kept: dict[str, tuple[bytes, torch.dtype]]
    sums: int
    calls: int

    def begin_keeping(self) -> None:
        self.kept, self.sums, self.calls = {}, 0, 0

    def exchange(self, group: Any, name: str, outs: Any, ins: Any, reduction: str, root: int, tag: int) -> None:
        number, self.calls = self.calls, self.calls + 1
        self.sums += name == "all_reduce"
        self.kept.update({f"{number}/in/{i}": aside(t) for i, t in enumerate(ins)})
        self.perform(group, name, outs, ins, reduction, root, tag)
        self.kept.update({f"{number}/out/{i}": aside(t) for i, t in enumerate(outs)})

    def perform(self, group: Any, name: str, outs: Any, ins: Any, reduction: str, root: int, tag: int) -> None:
        super().exchange(group, name, outs, ins, reduction, root, tag)


class FalseJob(KeepingJob):
    """A job whose ranks agree on a false sum: the first chunks of the gradients of step 2."""

    def perform(self, group: Any, name: str, outs: Any, ins: Any, reduction: str, root: int, tag: int) -> None:
        super().perform(group, name, outs, ins, reduction, root, tag)
        if name == "all_reduce" and self.sums == 2:
            outs[0].view(-1)[: FALSE_CHUNKS * CHUNK // 4] += 1.0


class LyingJob(KeepingJob):
    """A job one of whose ranks gives away a false sum of its share of the gradients of step 2."""

    def perform(self, group: Any, name: str, outs: Any, ins: Any, reduction: str, root: int, tag: int) -> None:
        lies = name == "all_reduce" and self.sums == 2 and self.coordinate.rank == LIAR
        super().perform(LyingGroup(group) if lies else group, name, outs, ins, reduction, root, tag)


class LyingGroup:
    """A group over which this rank sends contributions as they are, and its share of the results false."""

    def __init__(self, group: Any) -> None:
        self.group, self.rounds = group, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)

    def alltoall_base(self, received: torch.Tensor, sent: torch.Tensor, *rest: Any) -> Any:
        self.rounds += 1
        if self.rounds == 2:
            sent.view(torch.float32).add_(1.0)
        return self.group.alltoall_base(received, sent, *rest)


class LingeringJob(Job):
    """A job in which something holds what was reduced until a checkpoint is made: threads of a library can."""

    lingering: list[torch.Tensor]

    def begin_keeping(self) -> None:
        self.lingering = []

    def exchange(self, group: Any, name: str, outs: Any, ins: Any, reduction: str, root: int, tag: int) -> None:
        super().exchange(group, name, outs, ins, reduction, root, tag)
        self.lingering += [out.detach() for out in outs]

    def layout(self, attached: Any) -> bytes:
        self.lingering.clear()
        return super().layout(attached)


KEEPING = {"false": FalseJob, "lying": LyingJob, "lingering": LingeringJob}


def aside(t: torch.Tensor) -> tuple[bytes, torch.dtype]:
    """Takes content to the host's memory, where no snapshot shows it."""
    whole = t.detach().clone().reshape(-1)
    return ctypes.string_at(whole.data_ptr(), whole.numel() * whole.itemsize), whole.dtype


def wide(job: Job) -> Built:
    model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    return (wrapped := nn.parallel.DistributedDataParallel(model)), torch.optim.SGD(wrapped.parameters(), lr=1e-2)


BUILDERS.update(wide=wide, false=wide, lying=wide, lingering=plain)


def primitives(recorder: Recorder, job: Job) -> None:
    """Every collective once or twice, in an edit."""
    rank, ranks = job.coordinate.rank, job.coordinate.job.ranks
    kept = torch.zeros(3)
    recorder.attach(kept=kept)
    x = torch.arange(6, dtype=torch.float32).view(2, 3) / 7 + rank
    with recorder.step({"x": x}):
        results = []
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            y = x.clone()
            dist.all_reduce(y, op=op)
            results.append(y)
        whole = (x * 10).to(torch.int64)
        dist.all_reduce(whole, op=dist.ReduceOp.BOR)
        parts = [torch.empty_like(x) for _ in range(ranks)]
        dist.all_gather(parts, x)
        dist.broadcast(y, src=1)
        dist.reduce(y, dst=1, op=dist.ReduceOp.MIN)
        dist.scatter(y, parts if rank == 0 else None, src=0)
        dist.gather(y, parts if rank == 1 else None, dst=1)
        mine = torch.empty(3)
        dist.reduce_scatter_tensor(mine, x)
        other = torch.empty(ranks, 3)
        dist.all_to_all_single(other, x[:1].expand(ranks, 3).contiguous())
        swapped = torch.empty_like(x)
        sent = dist.isend(x, 1 - rank, tag=5)
        dist.recv(swapped, 1 - rank, tag=5)
        sent.wait()
        dist.barrier()
        kept.copy_(mine + other.sum(0) + swapped.sum(0) + sum(r.sum(0) for r in (*results, *parts, whole)))


def run(
    kind: str, rank: int, ranks: int, out: Path, chip: Shim | None = None, logs: Any = "full", beacon: str = ""
) -> None:
    store = out / f"store-{kind}-{ranks}"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    job = Job.from_environment(MESHES.get(kind))
    if kind in KEEPING:
        job.__class__ = KEEPING[kind]
        job.begin_keeping()  # type: ignore[attr-defined]
    data = committed(job.coordinate.along("data")) if kind in BUILDERS and kind not in BATCHES else None
    with Recorder(
        out / kind, seed=7, job=job, chip=chip, data=data, formulas=FORMULAS, checkpoint_every=2, logs=logs,
        device=None if logs == "full" else "cpu",
        repeats=Repeats(beacon=beacon, share=1.0, delay_s=300) if beacon else None,
    ) as recorder:  # fmt: skip
        if kind == "pipeline":
            train_pipeline(recorder, job, STEPS)
        elif kind == "primitives":
            primitives(recorder, job)
        else:
            train(kind, recorder, job, STEPS, chip)
    if isinstance(job, KeepingJob):
        kept = {name: torch.frombuffer(bytearray(data), dtype=dtype) for name, (data, dtype) in job.kept.items()}
        write_tensors(out / f"kept-{rank}", kept)
    dist.destroy_process_group()


def main(
    kinds: list[str], rank: int, ranks: int, out: Path, socket: str | None = None, logs: str = "full", beacon: str = ""
) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for kind in kinds:
        with nullcontext() if socket is None else Shim.connect(socket) as chip:
            run(kind, rank, ranks, out, chip, logs, beacon)


def option(name: str, default: str) -> str:
    return next((each.removeprefix(name) for each in sys.argv[1:] if each.startswith(name)), default)


if __name__ == "__main__":
    arguments = [each for each in sys.argv[1:] if not each.startswith((LOGS, BEACON))]
    logs, beacon = option(LOGS, "full"), option(BEACON, "")
    socket = arguments[4] if len(arguments) > 4 else None
    main(arguments[0].split(","), int(arguments[1]), int(arguments[2]), Path(arguments[3]), socket, logs, beacon)
    sys.stdout.flush()
    os._exit(0)  # FSDP2 over gloo sometimes aborts or hangs when the interpreter ends, without the Recorder too
