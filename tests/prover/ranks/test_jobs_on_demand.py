"""A job of one rank, in this process: its states are the same with logs and without, and its logs are made later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.on_demand import STEPS, key_of
from support.releases import need_jobs
from support.tied_rows import ones, square, ties

from prover import Job, Recorder
from weighbridge.execution.job_regeneration import ranks_of, regenerate_job
from weighbridge.execution.workers.job_worker import JobReplay
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import Supplements, folder_of


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The process group of one rank."""
    need_jobs()
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def recorded(path: Path, logs: str) -> Transcript:
    with Recorder(path, seed=7, job=Job.from_environment(), logs=logs, device="cpu") as recorder:  # type: ignore[arg-type]
        with recorder.initialisation():
            model, optimizer = ones()
        recorder.attach(model, optimizer)
        for step in range(STEPS):
            with recorder.step(batch := ties(step)):
                square(batch, model, optimizer)
                for parameter in model.parameters():
                    dist.all_reduce(parameter.data, op=dist.ReduceOp.AVG)
    return Transcript.open(ranks_of(path)[0])


def test_its_logs_are_made_later(tmp_path: Path) -> None:
    bare, full = recorded(tmp_path / "bare", "on-demand"), recorded(tmp_path / "full", "full")
    assert [each.state for each in bare.records()] == [each.state for each in full.records()]
    assert all(each.outputs and each.collectives for each in list(bare.records())[1:])
    (made,) = regenerate_job([bare.path], [key_of(bare.path)])
    assert made.logged == sum(each.logged for each in full.records()) > 0
    bare.supplement(folder_of(bare.path))
    assert isinstance(bare.supplements, Supplements)
    assert [bare.supplements.rounding(n) for n in range(STEPS + 1)] == [each.rounding.hex() for each in full.records()]
    request = {
        "path": str(tmp_path / "bare"), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 1 << 30,
    }  # fmt: skip
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        assert JobReplay(request, [], lambda message: None).run()["verdict"] == "match"
