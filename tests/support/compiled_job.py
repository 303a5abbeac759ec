"""One rank of small trainings, recorded one by one and as compiled steps: `compiled_job.py KINDS RANK RANKS OUT`.

Each kind is recorded in `OUT/KIND/plain/run` and in `OUT/KIND/compiled/run`; KIND:on-demand and KIND:sketch
have other logs, and in KIND:first only the first rank compiles. What each rank found is in `OUT/KIND/RANK.json`.
With KIND:plain and KIND:compiled it is recorded in one way, for kinds whose modules set up the process once.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

sys.path.append(str(Path(__file__).parents[2]))  # run as a program

from prover import Job, Recorder
from tests.support.compiled_programs import CHANGED, KEY, Program, Quick, layer, numbers_of, one_by_one, python_side
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import WeighbridgeError
from weighbridge.transcript.job_record import rank_name


class Averaged(Quick):
    """Each rank has its own batch, and gradients are averaged by hand."""

    steps = 7

    def batch(self, number: int, rows: int = 6) -> Any:
        return super().batch(1000 * dist.get_rank() + number, rows)

    def exchange(self) -> None:
        for p in self.model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)

    def function(self, batch: Any) -> Any:
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.exchange()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class Wrapped(Averaged):
    """DDP, whose hooks reduce buckets in the backward pass."""

    steps = 8
    options: ClassVar[dict[str, Any]] = {}

    def build(self) -> nn.Module:
        return nn.parallel.DistributedDataParallel(super().build(), **self.options)

    def exchange(self) -> None:
        pass


class Viewed(Wrapped):
    """Gradients are views of DDP's buckets."""

    options: ClassVar[dict[str, Any]] = {"gradient_as_bucket_view": True}


class Accumulated(Viewed):
    """Two backward passes, of which the first is not exchanged."""

    def function(self, batch: Any) -> Any:
        with cast(nn.parallel.DistributedDataParallel, self.model).no_sync():
            (self.loss(batch) * 0.5).backward()  # type: ignore[no-untyped-call]
        return super().function(batch)


class Norms(Wrapped):
    """DDP broadcasts the buffers of batch norms before each forward pass."""

    def build(self) -> nn.Module:
        inner = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
        return nn.parallel.DistributedDataParallel(inner)


class Sharded(Averaged):
    """Gradients are scattered and weights gathered by hand, as FSDP does, and numbers reduced by functions."""

    def function(self, batch: Any) -> Any:
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        ranks = dist.get_world_size()
        for p in self.model.parameters():
            whole = torch.zeros(-(-p.numel() // ranks) * ranks)
            whole[: p.numel()].copy_(cast(Tensor, p.grad).view(-1))
            mine = torch.empty(len(whole) // ranks)
            dist.reduce_scatter_tensor(mine, whole, op=dist.ReduceOp.AVG)
            work = dist.all_gather_into_tensor(whole, mine, async_op=True)
            assert work is not None
            work.wait()
            cast(Tensor, p.grad).view(-1).copy_(whole[: p.numel()])
        self.optimizer.step()
        self.optimizer.zero_grad()
        return functional.all_reduce(loss.detach(), "avg", dist.group.WORLD) + 0.0


class Every(Averaged):
    """All other collectives, and messages."""

    def function(self, batch: Any) -> Any:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.exchange()
        x = cast(Tensor, layer(self, 0).weight.grad).clone()
        parts = [torch.empty_like(x) for _ in range(ranks)]
        dist.all_gather(parts, x)
        dist.broadcast(x, src=1)
        dist.reduce(x, dst=1, op=dist.ReduceOp.MIN)
        dist.scatter(x, parts if rank == 0 else None, src=0)
        dist.gather(x, parts if rank == 1 else None, dst=1)
        other = torch.empty(ranks, 8)
        dist.all_to_all_single(other, x[:1].expand(ranks, 8).contiguous())
        swapped = torch.empty_like(x)
        sent = dist.isend(x, ranks - 1 - rank, tag=5)
        dist.recv(swapped, ranks - 1 - rank, tag=5)
        assert sent is not None
        sent.wait()
        gathered = functional.all_gather_tensor(other, 0, dist.group.WORLD)
        cast(Tensor, layer(self, 0).weight.grad).add_(swapped + other.sum() + gathered.mean())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return x.sum()


class Uneven(Wrapped):
    """One rank's batch is larger in one step, so that it is recorded one by one while the others run programs."""

    steps = 9

    def batch(self, number: int, rows: int = 6) -> Any:
        return super().batch(number, 9 if number == CHANGED and dist.get_rank() == 0 else rows)


class Apart(Averaged):
    """The ranks' programs are different, and one of them stops using programs."""

    def build(self) -> nn.Module:
        rank = dist.get_rank()
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh() if rank else nn.GELU(), nn.Linear(16, 4), nn.Dropout(0.1))

    def loss(self, batch: Any) -> Tensor:
        loss = super().loss(batch)
        return loss * 2 if dist.get_rank() else loss


class Lopsided(Averaged):
    """One rank's function cannot be compiled: it counts its calls."""

    calls = 0

    def function(self, batch: Any) -> Any:
        loss = super().function(batch)
        self.calls += dist.get_rank()
        return loss


class Barred(Averaged):
    """It waits for other ranks where no tape says so."""

    steps = 5

    def exchange(self) -> None:
        super().exchange()
        dist.barrier()


class Asked(Averaged):
    """It decides by what other ranks say."""

    steps = 5

    def exchange(self) -> None:
        super().exchange()
        largest = layer(self, 0).weight.grad.abs().max()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        if largest > 1e9:
            self.optimizer.zero_grad()


class Unused(Wrapped):
    """DDP looks for parameters that no rank uses, and reads what the others say."""

    steps = 6

    options: ClassVar[dict[str, Any]] = {"find_unused_parameters": True}


class Resized(Averaged):
    """FSDP2."""

    steps = 5

    def build(self) -> nn.Module:
        return fully_shard(super().build(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))

    def exchange(self) -> None:
        pass


class Parallel(Averaged):
    """Tensor parallelism."""

    steps = 5

    def build(self) -> nn.Module:
        inner = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return parallelize_module(inner, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def batch(self, number: int, rows: int = 6) -> Any:
        return Quick.batch(self, number, rows)

    def exchange(self) -> None:
        pass


class Shards(nn.Module):
    """A weight of which each rank holds rows."""

    def __init__(self) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.weight = nn.Parameter(DTensor.from_local(torch.randn(4, 8), mesh, [Shard(0)], run_check=False))


class Held(Averaged):
    """`DTensor`s hold the weights, and the function computes with their local parts, which are plain tensors."""

    steps = 7

    def build(self) -> nn.Module:
        return Shards()

    def function(self, batch: Any) -> Any:
        weight = cast(DTensor, self.model.weight)
        mine = weight.to_local().detach().requires_grad_()
        loss = nn.functional.cross_entropy(batch["x"] @ mine.T, batch["y"])
        (gradient,) = torch.autograd.grad(loss, [mine])
        dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
        with torch.no_grad():
            weight._local_tensor.sub_(0.01 * gradient)
        return loss


class Swapped(Held):
    """Another local part takes the place of the old one between two steps."""

    def after(self, number: int) -> None:
        super().after(number)
        weight = cast(DTensor, self.model.weight)
        if number == 4:
            weight._local_tensor = weight._local_tensor.clone()


class Given(Averaged):
    """A `DTensor` is the batch, and the function computes with its local part."""

    steps = 7

    def batch(self, number: int, rows: int = 6) -> Any:
        batch = super().batch(number, rows)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return {"x": DTensor.from_local(batch["x"], mesh, [Replicate()], run_check=False), "y": batch["y"]}

    def loss(self, batch: Any) -> Tensor:
        return super().loss({"x": batch["x"].to_local(), "y": batch["y"]})


KINDS: dict[str, type[Program]] = {
    each.__name__.lower(): each
    for each in (
        Averaged, Wrapped, Viewed, Accumulated, Norms, Sharded, Every, Uneven, Apart, Lopsided, Barred, Asked, Unused,
        Resized, Parallel, Held, Swapped, Given,
    )
}  # fmt: skip


def content(path: Path) -> dict[str, bytes]:
    files = {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
    del files["manifest.json"]
    return files


def record(path: Path, kind: str, job: Job, *, compiled: bool, logs: Any) -> dict[str, Any]:
    path.parent.mkdir(exist_ok=True, parents=True)
    results = []
    reasons, warned = [], []
    with Recorder(path, seed=3, device="cpu", key=KEY, checkpoint_every=3, job=job, logs=logs) as recorder:
        with recorder.initialisation():
            program = KINDS[kind]()
        recorder.attach(program.model, program.optimizer, *program.beside)
        made = recorder.compile(program.function)
        step: Callable[..., Any] = made if compiled else one_by_one(recorder, program.function)
        for number in range(program.steps):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                results.append(numbers_of(step(program.batch(number))))
            warned += [str(each.message) for each in caught if "cannot be compiled" in str(each.message)]
            program.after(number)
            reasons.append(made.reason)
    return {
        "content": content(path / rank_name(job.coordinate.rank)), "side": python_side(program), "results": results,
        "compiled": made.compiled, "recorded": made.recorded, "reasons": reasons,
        "warned": warned,
    }  # fmt: skip


def run_once(kind: str, way: str, job: Job, out: Path) -> None:
    """Records it in one way, as a job that always has the same name."""
    job.coordinate = replace(job.coordinate, job=replace(job.coordinate.job, id=bytes(16)))
    rank = job.coordinate.rank
    try:
        found = record(out / "run", kind, job, compiled=way == "compiled", logs="full")
    except WeighbridgeError as error:
        found = {"content": {}, "failed": f"{error.reason}: {error.message}"}
    content = {name: bytes_digest(data).hex() for name, data in found["content"].items()}
    (out / f"{rank}.json").write_text(json.dumps({**found, "content": content, "side": ""}))


def run(kind: str, way: str, job: Job, out: Path) -> None:
    logs: Any = way if way in ("on-demand", "sketch") else "full"
    rank = job.coordinate.rank
    found = record(out / "compiled" / "run", kind, job, compiled="first" not in way or not rank, logs=logs)
    plain = record(out / "plain" / "run", kind, job, compiled=False, logs=logs)
    differ = [name for name in plain["content"] if plain["content"][name] != found["content"].get(name)]
    answer = {
        "differ": differ + [each for each in ("side", "results") if plain[each] != found[each]],
        **{each: found[each] for each in ("compiled", "recorded", "reasons", "warned")},
    }  # fmt: skip
    (out / f"{rank}.json").write_text(json.dumps(answer))


def main(kinds: list[str], rank: int, ranks: int, out: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out / 'store'}", rank=rank, world_size=ranks)
    job = Job.from_environment()
    for each in kinds:
        kind, _, way = each.partition(":")
        work = run_once if way in ("plain", "compiled") else run
        work(kind, way, job, out / each.replace(":", "-"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
