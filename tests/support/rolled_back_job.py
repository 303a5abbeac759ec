"""One rank of jobs that a dishonest Prover takes back or branches: `rolled_back_job.py KINDS RANK RANKS OUT`.

As `resumed_job.py`, whose training they run. In `OUT/KIND` are the job (`run`), perhaps another branch of it
(`branch`), and for each rank what came of its last start: `RANK.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

sys.path.append(str(Path(__file__).parents[2]))  # run as a program
sys.path.append(str(Path(__file__).parents[1]))

from support import resumed_job
from support.resumed_job import CUT, crash, fixed, of_rank, once, started

from prover import Job, Recorder
from prover.recording.recomputed_step import RecomputedStep
from weighbridge.execution.continuing import Continuation

EARLY = CUT - 3
"""The step in which rank 1 dies of which a copy is put back later."""
ELSEWHERE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
"""What makes a process one on another kind of machine."""


@contextmanager
def other_data(since: int, ranks: tuple[int, ...] = (0, 1)) -> Iterator[None]:
    """Has some ranks train on other data from an update on."""
    honest = resumed_job.batch_of

    def batch_of(step: int, shift: float) -> dict[str, torch.Tensor]:
        return honest(step, shift + float(step >= since and dist.get_rank() in ranks))

    resumed_job.batch_of = batch_of
    try:
        yield
    finally:
        resumed_job.batch_of = honest


def average_at_once(model: nn.Module) -> None:
    """Averages gradients in one exchange, so that a rank may be at the end of a step before another one compares it."""
    whole = torch.cat([cast(torch.Tensor, p.grad).view(-1) for p in model.parameters()])
    dist.all_reduce(whole, op=dist.ReduceOp.AVG)
    for p, part in zip(model.parameters(), whole.split([p.numel() for p in model.parameters()]), strict=True):
        cast(torch.Tensor, p.grad).copy_(part.view_as(p))


@contextmanager
def comparing_nothing() -> Iterator[None]:
    """Has the Recorder compare nothing with what was recorded."""
    honest = Continuation._compare, RecomputedStep._compare
    Continuation._compare = lambda *_: None  # type: ignore[method-assign]
    RecomputedStep._compare = lambda self, checksum: self.checksums.append(checksum)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Continuation._compare, RecomputedStep._compare = honest  # type: ignore[method-assign]


def taken_back(path: Path, job: Job, ranks: tuple[int, ...], **options: Any) -> None:
    """Crashes early, goes on, crashes again, and puts back what some ranks had at first."""
    crash(path, job, cut=EARLY, **options)
    aside = path.with_name("aside")
    once(lambda: shutil.copytree(path, aside))
    crash(path, job, **options)
    once(lambda: shutil.copytree(path, path.with_name("abandoned")))

    def put_back() -> None:
        for place in [of_rank(path, rank, suffix) for rank in ranks for suffix in ("", ".resume")]:
            shutil.rmtree(place)
            shutil.copytree(aside / place.name, place)

    once(put_back)


# -- kinds -------------------------------------------------------------------------------------------------------------


def whole(path: Path, job: Job) -> dict[str, Any]:
    return started(path, job)


def rolled(path: Path, job: Job) -> dict[str, Any]:
    """Rank 1 lost its last steps, and makes them again as they were."""
    taken_back(path, job, (1,))
    return started(path, job)


def changed(path: Path, job: Job) -> dict[str, Any]:
    """Rank 1 was taken back, and makes the steps that rank 0 has with other data; no kind can follow."""
    resumed_job.average = average_at_once
    taken_back(path, job, (1,))
    try:
        with other_data(EARLY, (1,)):
            return {**started(path, job), "ends": True}
    except RuntimeError as error:
        return {"alone": str(error), "ends": True}


def right(path: Path, job: Job) -> dict[str, Any]:
    """Goes on with the right data after the refusal; in other processes."""
    resumed_job.average = average_at_once
    return started(path.parent.parent / "changed" / "run", job)


def unchecked(path: Path, job: Job) -> dict[str, Any]:
    """The same with Recorders that compare nothing."""
    taken_back(path, job, (1,))
    with other_data(EARLY, (1,)), comparing_nothing():
        return started(path, job)


def branched(path: Path, job: Job) -> dict[str, Any]:
    """Goes on twice from one crash, the second time with other data, so that there are two jobs of one name."""
    crash(path, job)
    once(lambda: shutil.copytree(path, path.with_name("branch")))
    first = started(path, job)
    with other_data(CUT):
        return {"first": first, "second": started(path.with_name("branch"), job)}


def together(path: Path, job: Job) -> dict[str, Any]:
    """All ranks were taken back and made other steps; `abandoned` is what they had."""
    taken_back(path, job, (0, 1), logs="on-demand")
    with other_data(EARLY):
        return started(path, job, logs="on-demand")


def unlike(path: Path, job: Job) -> dict[str, Any]:
    """Ranks under different bounds, with products of more terms than a block has."""
    policy = "mixed" if dist.get_rank() else "blocked-64"
    with Recorder(path, seed=3, job=job, device="cpu", policy=policy) as recorder:
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(300, 12), nn.ReLU(), nn.Linear(12, 5))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        for step in range(2):
            numbers = torch.Generator().manual_seed(10 * step + dist.get_rank())
            with recorder.step(x := torch.randn(64, 300, generator=numbers)):
                model(x).square().mean().backward()
                resumed_job.average(model)
                optimizer.step()
                optimizer.zero_grad()
    return {}


def repoliced(path: Path, job: Job) -> dict[str, Any]:
    """Rank 1 goes on under other bounds."""
    crash(path, job)
    found = started(path, job, policy="blocked-64" if dist.get_rank() else "mixed")
    return {**found, "then": started(path, job)}


def alike(step: int, shift: float) -> dict[str, torch.Tensor]:
    """A batch that is the same on every kind of machine, as PyTorch's draws are not."""
    numbers = np.random.default_rng([step, dist.get_rank()])
    x = numbers.standard_normal((4, 8)).astype(np.float32) + np.float32(shift)
    return {"x": torch.from_numpy(x), "y": torch.from_numpy(numbers.integers(0, 5, 4))}


def moved(kind: str, phase: str, path: Path, job: Job) -> dict[str, Any]:
    """Rank 1 goes on on another kind of machine."""
    resumed_job.batch_of, logs = alike, "full" if kind == "moved" else "on-demand"
    if phase == "crash":
        crash(path, job, logs=logs)
        return {}
    return started(path, job, logs=logs)


KINDS: Mapping[str, Callable[[Path, Job], dict[str, Any]]] = {
    each.__name__: each for each in (whole, rolled, changed, unchecked, branched, together, unlike, repoliced, right)
}


def main(kinds: list[str], rank: int, ranks: int, out: Path) -> None:
    if rank and kinds[0].endswith("-resume") and any(os.environ.get(name) != ELSEWHERE[name] for name in ELSEWHERE):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ELSEWHERE})
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = out / f"store-{kinds[0]}"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    job = Job.from_environment()
    for each in kinds:
        kind, _, phase = each.partition("-")
        place = out / kind
        place.mkdir(exist_ok=True)
        given = place / "run", fixed(job, bytes(16))
        found = moved(kind, phase, *given) if phase else KINDS[kind](*given)
        (place / f"{rank}.json").write_text(json.dumps(found))
        if found.get("ends"):
            os._exit(0)  # the other rank has nothing to wait for any more
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
