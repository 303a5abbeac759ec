"""Recorded steps of jobs for `benchmarks.bench_collectives`: a perceptron under DDP, and GPT-2 under FSDP2."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from prover import Job, Recorder
from prover.ranks import transfers
from prover.ranks.exchange import Exchange
from prover.recipes.gpt2_fsdp import sharded_gpt2
from prover.recipes.recipe import batches
from weighbridge.execution.workers.job_worker import JobReplay
from weighbridge.numerics import exchanges
from weighbridge.numerics.conformance.switches import conforming
from weighbridge.transcript.job_record import rank_name
from weighbridge.transcript.reader import Transcript

Tensor = torch.Tensor
Measured = Callable[[Callable[[Any], None]], dict[str, float]]
Training = tuple[nn.Module, Callable[[dict[str, Tensor]], None], Iterator[dict[str, Tensor]]]

STEPS, ROWS, WIDTH, HIDDEN = 3, 8, 256, 1024
ROUNDS = 2
PIECE = 1 << 24
WAYS = ("gathered", "shares")


class Gathering(Exchange):
    """An exchange that gathers all contributions to an all-reduce at every rank, as it was at first."""

    def _combined(
        self, group: Any, name: str, outs: list[Tensor], ins: list[Tensor], reduction: str, root: int
    ) -> None:
        if name != "all_reduce":
            super()._combined(group, name, outs, ins, reduction, root)
            return
        for first in range(0, ins[0].numel(), PIECE):
            piece = slice(first, first + PIECE)
            outs[0][piece] = exchanges.combine(reduction, transfers.all_gather(group, ins[0][piece]))


class CountedJob(Job):
    """A job whose exchange of a step goes through a counted group."""

    counted: Any

    def exchange(self, group: Any, name: str, outs: Any, ins: Any, reduction: str, root: int, tag: int) -> None:
        """Exchanges, and counts if that is wanted."""
        super().exchange(self.counted or group, name, outs, ins, reduction, root, tag)


class GatheringJob(Gathering, CountedJob):
    """The same, as it was."""


def perceptron(dtype: torch.dtype) -> Training:
    """A data-parallel perceptron of 1.3 million weights."""
    net = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
    model = nn.parallel.DistributedDataParallel(net.append(nn.Linear(HIDDEN, 10)).to(dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def update(batch: dict[str, Tensor]) -> None:
        nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    def rows() -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(STEPS):
            x = torch.randn(ROWS, WIDTH, generator=generator).to(dtype)
            yield {"x": x, "y": torch.randint(0, 10, (ROWS,), generator=generator)}

    return model, update, rows()


def sharded(dtype: torch.dtype) -> Training:
    """GPT-2 of 1.1 million weights, which all ranks share."""
    recipe = sharded_gpt2(layers=2, records=512)
    shard = recipe.wrap
    recipe = dataclasses.replace(recipe, wrap=lambda model: shard(model.to(dtype)))
    training = recipe.build()
    ids = batches(recipe, seed=1, steps=STEPS)
    return training.model, lambda batch: recipe.update(training, batch) and None, (recipe.batch(i) for i in ids)


RECIPES: dict[str, Callable[[torch.dtype], Training]] = {"ddp": perceptron, "fsdp": sharded}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def steps(out: Path, measured: Measured) -> list[dict[str, Any]]:
    """Records each recipe both ways, in turn; returns medians over all steps but the first two of a job."""
    found = []
    for recipe in RECIPES:
        for dtype in DTYPES:
            rounds: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for number in range(ROUNDS):
                for way in WAYS:
                    rounds[way] += _record(out / _name(recipe, dtype, way, number), recipe, dtype, way, measured)
            ways = {
                way: {key: statistics.median(step[key] for step in each) for key in each[0]}
                for way, each in rounds.items()
            }
            found.append({"recipe": recipe, "dtype": dtype, "ways": ways})
    return found


def _name(recipe: str, dtype: str, way: str, number: int) -> str:
    return f"{recipe}-{dtype}-{way}-{number}"


def _record(path: Path, recipe: str, dtype: str, way: str, measured: Measured) -> list[dict[str, float]]:
    job = Job.from_environment()
    job.__class__ = GatheringJob if way == "gathered" else CountedJob
    job.counted = None  # type: ignore[attr-defined]
    found = []
    with Recorder(path, seed=3, job=job) as recorder:
        with recorder.initialisation():
            model, update, rows = RECIPES[recipe](DTYPES[dtype])
        recorder.attach(model)
        for batch in rows:

            def one(group: Any, batch: dict[str, Tensor] = batch) -> None:
                job.counted = group  # type: ignore[attr-defined]
                with recorder.step(batch):
                    update(batch)
                job.counted = None  # type: ignore[attr-defined]

            found.append(measured(one))
    return found[2:]


def compared(out: Path, recipe: str, dtype: str) -> dict[str, Any]:
    """Says whether all step records of both ways are the same, and what the replay of the present way's says.

    The first job of a process is left out: caches of the libraries are empty in it, which its tapes show.
    """
    before, after = (out / _name(recipe, dtype, way, ROUNDS - 1) for way in WAYS)
    ranks = sorted(path.name for path in after.glob("rank-*"))
    same = all(
        Transcript.open(before / rank).step(step) == Transcript.open(after / rank).step(step)
        for rank in ranks
        for step in range(STEPS + 1)
    )
    request: dict[str, Any] = {
        "path": str(after), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 8 << 30,
    }  # fmt: skip
    with torch.no_grad(), conforming():
        verdict = JobReplay(request, [], lambda message: None).run()["verdict"]
    return {"same_records": same and ranks[0] == rank_name(0), "verdict": verdict}
