"""A job on several ranks, as the Recorder of one rank sees it: its coordinate, its part of a step, and the exchange."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from prover.capture.attached_objects import Attached
from prover.capture.group_uses import GroupUse
from prover.capture.step_capture import Capture
from prover.ranks.exchange import Exchange
from prover.ranks.program_calls import ProgramCalls, stand
from prover.ranks.shard_layout import layout_of
from prover.ranks.sharded_step import ShardedStep
from weighbridge.core.errors import UsageError
from weighbridge.transcript import layout
from weighbridge.transcript.job_record import AXES, RECORD, JobRecord, MeshCoordinate, rank_name


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

    def begin(self, path: Path) -> Path:
        """Returns the directory of this rank's transcript; the first rank writes the job's record.

        Raises:
            UsageError: There is a job in the directory already, or it cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            if self.coordinate.rank == 0:
                with (path / RECORD).open("xb") as file:
                    file.write(self.coordinate.job.encode())
        except FileExistsError:
            raise UsageError(f"{path} holds a job already; choose a new directory") from None
        except OSError as error:
            raise UsageError(f"cannot write to {path} ({error.strerror}); choose another directory") from None
        return path / rank_name(self.coordinate.rank)

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


def alone_group(device: torch.device, rank: int) -> Any:
    """Returns a process group of one rank; on the CPU with one thread, which `new_group` does not offer."""
    if device.type != "cpu":
        return dist.new_group([rank], use_local_synchronization=True)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_default_device()]
    options._threads = 1
    return dist.ProcessGroupGloo(dist.HashStore(), 0, 1, options)  # type: ignore[attr-defined]
