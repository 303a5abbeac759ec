"""A job on several ranks, as the Recorder of one rank sees it: its coordinate, its part of a step, and the exchange."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from prover.capture.attached_objects import Attached
from prover.capture.group_uses import GroupUse
from prover.capture.step_capture import Capture
from prover.ranks import agreement
from prover.ranks.exchange import Exchange
from prover.ranks.program_calls import ProgramCalls, stand
from prover.ranks.shard_layout import layout_of
from prover.ranks.sharded_step import ShardedStep
from weighbridge.core.durable import sync
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.transcript import layout
from weighbridge.transcript.job_record import (
    AXES,
    RECORD,
    JobRecord,
    MeshCoordinate,
    rank_name,
    read_record,
)


class Job(Exchange):
    """A job on several ranks, as the process of one rank takes part in it.

    Attributes:
        coordinate: The job's record and this rank.
    """

    def __init__(self, coordinate: MeshCoordinate, alone: Any, device: torch.device) -> None:
        """Use `from_environment`."""
        super().__init__(alone, device)
        self.coordinate = coordinate

    @staticmethod
    def from_environment(mesh: Mapping[str, int] | None = None) -> Job:
        """Joins the job of the default process group; every rank calls this, after `init_process_group`.

        Args:
            mesh: Sizes of the axes `pipeline`, `data`, `tensor`, the last one varying fastest from rank to rank, as in
                `init_device_mesh`; by default all ranks are data-parallel.

        Raises:
            UsageError: There is no process group, or the mesh does not fit it.
        """
        if not dist.is_available() or not dist.is_initialized():
            raise UsageError("a job needs a process group; call torch.distributed.init_process_group() first")
        world, rank = dist.get_world_size(), dist.get_rank()
        sizes = {"data": world} if mesh is None else dict(mesh)
        record = JobRecord(bytes(16), tuple(sizes.items()))
        if not sizes or set(sizes) - set(AXES) or record.ranks != world:
            raise UsageError(f"the mesh {sizes} is not {', '.join(AXES)} with sizes that multiply to {world} ranks")
        device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        identity = torch.tensor(list(secrets.token_bytes(16)), dtype=torch.uint8, device=device)
        dist.broadcast(identity, 0)
        coordinate = MeshCoordinate(JobRecord(bytes(identity.tolist()), record.mesh), rank)
        return Job(coordinate, alone_group(device, rank), device)

    def begin(self, path: Path, *, resume: bool = False) -> Path:
        """Returns the directory of this rank's transcript; the first rank writes the job's record.

        Args:
            path: The job's directory.
            resume: Whether a job that is there already is taken up again. Every rank then becomes one of that job.

        Raises:
            UsageError: There is a job in the directory already, or another one than is to be resumed
                (`record.resume.differs`), or it cannot be written.
        """
        wrong: UsageError | None = None
        try:
            path.mkdir(parents=True, exist_ok=True)
            if self.coordinate.rank == 0:
                self._begin_record(path / RECORD, resume=resume)
        except FileExistsError:
            wrong = UsageError(f"{path} holds a job already; choose a new directory")
        except OSError as error:
            wrong = UsageError(f"cannot write to {path} ({error.strerror}); choose another directory")
        except WeighbridgeError as error:
            wrong = UsageError(error.message, code=error.reason)
        if resume:
            self.require_all(wrong)
            identity, *_ = agreement.numbers(list(self.coordinate.job.id), self._device)
            self.coordinate = replace(self.coordinate, job=replace(self.coordinate.job, id=bytes(identity)))
        elif wrong is not None:
            raise wrong
        return path / rank_name(self.coordinate.rank)

    def _begin_record(self, place: Path, *, resume: bool) -> None:
        """Writes the job's record, or becomes the first rank of the job whose record is there."""
        if resume and place.exists() and place.stat().st_size:
            there, own = read_record(place), self.coordinate.job
            if there.mesh != own.mesh:
                raise UsageError(
                    f"the job in {place.parent} was begun on {there.ranks} ranks ({_said(there)}), and this one has "
                    f"{own.ranks} ({_said(own)}); resume it on the same ranks, with the same mesh",
                    code="record.resume.differs",
                )
            self.coordinate = replace(self.coordinate, job=there)
            return
        with place.open("wb" if resume else "xb") as file:
            file.write(self.coordinate.job.encode())
        sync(place)
        sync(place.parent)

    def require_all(self, wrong: WeighbridgeError | None) -> None:
        """Lets all ranks go on, or none.

        Args:
            wrong: Why this one cannot; None if it can.

        Raises:
            WeighbridgeError: A rank cannot; all others name it.
        """
        said = agreement.texts("" if wrong is None else f"{wrong.reason} {wrong.message}", self._device)
        if wrong is not None:
            raise wrong
        for rank, text in enumerate(said):
            if text:
                code, _, message = text.partition(" ")
                raise UsageError(f"rank {rank} cannot go on: {message}", code=code, rank=rank)

    def tell(self, numbers: Sequence[int]) -> list[list[int]]:
        """Returns what each rank gives, by rank: as many numbers as this one."""
        return agreement.numbers(numbers, self._device)

    def holds_more(self, attached: Attached) -> bool:
        """Whether attached modules keep what no tensor says: DDP its buckets, FSDP2 and tensor parallelism theirs.

        Their first steps are other programs than later ones, so only a program that makes all steps again makes the
        same ones.
        """
        modules = [part for _, module in attached.modules() for part in module.modules()]
        wrapped = any(isinstance(each, (DistributedDataParallel, FSDPModule)) for each in modules)
        return wrapped or any(isinstance(t, DTensor) for t in attached.global_tensors().values())

    def begin_step(self, capture: Capture) -> None:
        """Lets a capture see what a program on several ranks does beside ordinary operations."""
        capture.ranks = ShardedStep(self, capture)

    def calls(self, uses: Sequence[GroupUse]) -> ProgramCalls:
        """Returns what performs the collectives of a step that runs as a program."""
        return ProgramCalls(self, uses)

    def stand(self, uses: Sequence[GroupUse]) -> bool:
        """Whether all groups are still those that PyTorch knows by their names."""
        return stand(uses)

    def layout(self, attached: Attached) -> bytes:
        """Returns the encoded layout of all attached tensors: which part of each this rank holds."""
        return layout.encode(layout_of(attached))


def _said(record: JobRecord) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in record.mesh)


def alone_group(device: torch.device, rank: int) -> Any:
    """Returns a process group of one rank; on the CPU with one thread, which `new_group` does not offer."""
    if device.type != "cpu":
        return dist.new_group([rank], use_local_synchronization=True)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_default_device()]
    options._threads = 1
    return dist.ProcessGroupGloo(dist.HashStore(), 0, 1, options)  # type: ignore[attr-defined]
