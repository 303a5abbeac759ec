"""One rank of jobs that crash and are resumed, honestly and not: `resumed_job.py KINDS RANK RANKS OUT [SOCKET]`.

A crash is an exception here, which leaves what a kill leaves (`benchmarks.soak_resume` kills). In `OUT/KIND` are the
job (`run`), and for each rank what came of its last start: `RANK.json`. Kinds of `sharded_job.py` have phases, `whole`,
`crash` and `resume` (`ddp-crash`); `on_chip` runs on the chip at SOCKET. Each job is to be what was left alone:
`OUT/whole/run`, or `OUT/KIND/whole/run`.
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.append(str(Path(__file__).parents[2]))  # run as a program
sys.path.append(str(Path(__file__).parents[1]))

from support import sharded_job

from firmware_sim import Shim
from prover import Job, Recorder
from prover.recording.recomputed_step import RecomputedStep
from weighbridge.core.bounded import DEFAULT_LIMITS
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.continuing import Continuation
from weighbridge.transcript.job_record import RECORD, JobRecord, rank_name
from weighbridge.transcript.steps import pack_records, read_records, steps_path

STEPS, CUT, EVERY = 8, 6, 3


class CrashError(Exception):
    """Ends a training here."""


def average(model: nn.Module) -> None:
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)


def batch_of(step: int, shift: float) -> dict[str, torch.Tensor]:
    batch = sharded_job.batch_of(step, dist.get_rank())
    return {"x": batch["x"] + shift, "y": batch["y"]}


def train(
    path: Path,
    job: Job,
    *,
    stops: bool = False,
    cut: int = CUT,
    kind: str = "",
    shift: float = 0.0,
    steps: int = STEPS,
    snapshots: Collection[int] = (),
    **options: Any,
) -> None:
    """Trains; if it `stops`, rank 1 does in the step `cut`, after its exchanges, and rank 0 after that step."""
    options = {"checkpoint_every": EVERY, "device": "cpu", **options}
    with Recorder(path, seed=3, resume=True, job=job, **options) as recorder:
        with recorder.initialisation():
            if kind:
                model, optimizer = sharded_job.BUILDERS[kind](job)
            else:
                model = nn.Sequential(nn.Linear(8, 12), nn.Dropout(0.1), nn.ReLU(), nn.Linear(12, 5))
                optimizer = sharded_job.optimizer_of(model)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        recorder.attach(model, optimizer, schedule)

        def taken() -> None:
            options["chip"].request_snapshot()

        def die(*_: object) -> None:
            if stops and recorder.step_number == cut and job.coordinate.rank:
                raise CrashError

        optimizer.register_step_pre_hook(die)
        model.register_forward_hook(lambda *_: taken() if recorder.step_number in snapshots else None)
        for update in range(recorder.updates, steps):
            batch = batch_of(update, shift)
            with recorder.step(batch):
                nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
                if not kind:
                    average(model)
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
            if stops and recorder.step_number > cut:
                raise CrashError


def crash(path: Path, job: Job, **options: Any) -> None:
    try:
        train(path, job, stops=True, **options)
    except CrashError:
        dist.barrier()
        return
    raise AssertionError("it did not crash")


def started(path: Path, job: Job, **options: Any) -> dict[str, Any]:
    """Starts a training and says what came of it."""
    try:
        train(path, job, **options)
    except WeighbridgeError as error:
        return {"refused": error.message, "code": error.reason}
    return {}


def once(work: Callable[[], object]) -> None:
    """Lets one rank change files while no rank uses them."""
    dist.barrier()
    if dist.get_rank() == 0:
        work()
    dist.barrier()


def of_rank(path: Path, rank: int = 1, suffix: str = "") -> Path:
    return path / (rank_name(rank) + suffix)


def kept(path: Path, rank: int = 1) -> Path:
    return of_rank(path, rank, ".resume")


# -- kinds -------------------------------------------------------------------------------------------------------------


def whole(path: Path, job: Job) -> dict[str, Any]:
    return started(path, job)


def behind(path: Path, job: Job) -> dict[str, Any]:
    crash(path, job)
    return started(path, job)


def at_once(path: Path, job: Job) -> dict[str, Any]:
    """In the first step, so that rank 1 has nothing to begin with."""
    crash(path, job, cut=1)
    return started(path, job)


def twice(path: Path, job: Job) -> dict[str, Any]:
    crash(path, job)
    crash(path, job, cut=CUT + 1)
    return started(path, job)


def unsigned(path: Path, job: Job) -> dict[str, Any]:
    """A kill before rank 1 signed, when rank 0 had."""
    train(path, job)

    def kill() -> None:
        (of_rank(path) / "manifest.json").unlink()
        kept(path).mkdir()
        (kept(path) / "ended").touch()

    once(kill)
    return started(path, job)


def on_chip(path: Path, job: Job, socket: str) -> dict[str, Any]:
    """With snapshots in a step of the past, in those that are made again, in the one that was cut off, and later."""
    with Shim.connect(socket) as chip:
        crash(path, job, chip=chip, snapshots={2, CUT})
    with Shim.connect(socket) as chip:
        return started(path, job, chip=chip, snapshots={CUT - 1, CUT, CUT + 1})


def lost(path: Path, job: Job) -> dict[str, Any]:
    """All that rank 1 had."""
    crash(path, job)

    def lose() -> None:
        for each in (of_rank(path), kept(path)):
            each.rename(each.with_name("gone" + each.suffix))

    def restore() -> None:
        shutil.rmtree(of_rank(path))
        shutil.rmtree(kept(path))
        for each in (of_rank(path), kept(path)):
            each.with_name("gone" + each.suffix).rename(each)

    once(lose)
    found = started(path, job)
    once(restore)
    return {**found, "then": started(path, job)}


def beside(path: Path, job: Job) -> dict[str, Any]:
    """What rank 1 had beside its transcript; then that of all ranks is removed, as the refusal says."""
    crash(path, job)
    once(lambda: shutil.rmtree(kept(path)))
    found = started(path, job)
    once(lambda: [shutil.rmtree(kept(path, rank), ignore_errors=True) for rank in (0, 1)])
    return {**found, "then": started(path, job)}


def swapped(path: Path, job: Job) -> dict[str, Any]:
    """Rank 1's transcript is another run's."""
    crash(path, job)
    other = fixed(job, bytes([1] * 16))
    crash(path.with_name("other"), other)

    def swap() -> None:
        for suffix in ("", ".resume"):
            shutil.rmtree(of_rank(path, suffix=suffix))
            shutil.copytree(of_rank(path.with_name("other"), suffix=suffix), of_rank(path, suffix=suffix))

    once(swap)
    return started(path, job)


def twin(path: Path, job: Job) -> dict[str, Any]:
    """Rank 1's transcript is that of another run under the same draft, whose data were others."""
    crash(path, job)
    crash(path.with_name("other") / "run", job, shift=1.0)

    def swap() -> None:
        for suffix in ("", ".resume"):
            shutil.rmtree(of_rank(path, suffix=suffix))
            shutil.copytree(of_rank(path.with_name("other") / "run", suffix=suffix), of_rank(path, suffix=suffix))

    once(swap)
    return started(path, job, shift=float(dist.get_rank()))


def numbered(path: Path, job: Job) -> dict[str, Any]:
    """The ranks' transcripts are exchanged."""
    crash(path, job)

    def exchange() -> None:
        for suffix in ("", ".resume"):
            first, second = of_rank(path, 0, suffix), of_rank(path, 1, suffix)
            first.rename(path / "between")
            second.rename(first)
            (path / "between").rename(second)

    once(exchange)
    return started(path, job)


def meshed(path: Path, job: Job) -> dict[str, Any]:
    """The job has other ranks than it was begun with."""
    crash(path, job)
    once(lambda: (path / RECORD).write_bytes(JobRecord(bytes(16), (("data", 4),)).encode()))
    found = started(path, job)
    once(lambda: (path / RECORD).write_bytes(JobRecord(bytes(16), (("tensor", 2),)).encode()))
    return {**found, "then": started(path, job)}


def rewritten(path: Path, job: Job) -> dict[str, Any]:
    """A state before the step that the ranks go on with is another one now."""
    crash(path, job)

    def rewrite() -> None:
        place = of_rank(path) / steps_path(1)
        records = read_records(place, DEFAULT_LIMITS)
        records[1] = replace(records[1], state=bytes(32))
        place.write_bytes(pack_records(records))

    once(rewrite)
    return started(path, job)


class ApartJob(Job):
    """A job each of whose ranks takes all to say what it says itself, and so goes on with a step of its own."""

    def tell(self, numbers: Any) -> list[list[int]]:
        return [list(numbers)] * self.coordinate.job.ranks


def apart(path: Path, job: Job) -> dict[str, Any]:
    """Rank 0 goes on with step 6, rank 1 with step 5."""
    crash(path, job, checkpoint_every=1)
    return started(path, disguised(job), checkpoint_every=1)


def unchecked(path: Path, job: Job) -> dict[str, Any]:
    """The same by Recorders that compare nothing with what was recorded; each makes three steps."""
    crash(path, job, checkpoint_every=1, logs="on-demand")
    honest = Continuation._compare, RecomputedStep._compare
    Continuation._compare = lambda *_: None  # type: ignore[method-assign]
    RecomputedStep._compare = lambda self, checksum: self.checksums.append(checksum)  # type: ignore[method-assign]
    try:
        return started(path, disguised(job), checkpoint_every=1, logs="on-demand", steps=STEPS - dist.get_rank())
    finally:
        Continuation._compare, RecomputedStep._compare = honest  # type: ignore[method-assign]


def disguised(job: Job) -> Job:
    return ApartJob(job.coordinate, job._alone, job._device)


def fixed(job: Job, identity: bytes) -> Job:
    coordinate = replace(job.coordinate, job=replace(job.coordinate.job, id=identity))
    return Job(coordinate, job._alone, job._device)


def wrapped(kind: str, phase: str, path: Path, job: Job) -> dict[str, Any]:
    """Modules that keep what no tensor says; each phase has processes of its own."""
    if phase == "crash":
        crash(path, job, kind=kind)
        return {}
    return started(path.with_name("whole") / "run" if phase == "whole" else path, job, kind=kind)


KINDS: Mapping[str, Callable[[Path, Job], dict[str, Any]]] = {
    each.__name__: each
    for each in (
        whole, behind, at_once, twice, unsigned, lost, beside, swapped, twin, numbered, meshed, rewritten, apart,
        unchecked,
    )
}  # fmt: skip


def main(kinds: list[str], rank: int, ranks: int, out: Path, socket: str) -> None:
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
        if kind == "on_chip":
            found = on_chip(*given, socket)
        else:
            found = wrapped(kind, phase, *given) if phase else KINDS[kind](*given)
        (place / f"{rank}.json").write_text(json.dumps(found))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), "".join(sys.argv[5:6]))
