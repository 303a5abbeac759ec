"""Replays in a worker of its own: other instruction sets, limits, and tapes that kill the process they run in.

A worker takes seconds to start, so what needs none is in `test_executor` and `test_hostile_tapes`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.forging import at_step, forge
from support.hostile_tapes import crash, endless
from support.recordings import train
from torch import Tensor, nn
from torch.nn import functional as F

from weighbridge import Limits, ReplayResult, replay
from weighbridge.core.errors import ReplayWorkerError, TranscriptError, UsageError, WeighbridgeError
from weighbridge.numerics.rounding import rounding_log
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Node, Tape

STEPS = 3
LINUX = sys.platform == "linux"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small net of kernels that differ between instruction sets: its log is not empty."""
    generator = torch.Generator().manual_seed(2)
    batches = [
        {"x": torch.randn(32, 40, generator=generator), "y": torch.randint(0, 10, (32,), generator=generator)}
        for _ in range(STEPS)
    ]

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(40, 200), nn.LayerNorm(200), nn.SiLU(), nn.Dropout(0.1), nn.Linear(200, 10))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        F.cross_entropy(model(batch["x"]), batch["y"]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    path = tmp_path_factory.mktemp("runs") / "run"
    train(path, build, step, batches, every=2)
    return path


ELSEWHERE = [
    {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "MKL_CBWR": "COMPATIBLE",
        "OMP_NUM_THREADS": "1",
    },
    {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "2"},
]


@pytest.fixture(scope="module")
def elsewhere(run: Path) -> list[ReplayResult]:
    """Replays on other instruction sets with other numbers of threads."""
    return [replay(run, env=environment) for environment in ELSEWHERE]


def test_other_instruction_sets_and_threads_give_the_same_state(run: Path, elsewhere: list[ReplayResult]) -> None:
    transcript = Transcript.open(run)
    for result, environment in zip(elsewhere, ELSEWHERE, strict=True):
        assert (result.verdict, result.first_difference) == ("match", None)
        assert result.state == transcript.step(STEPS).state.hex()
        assert f"{environment['OMP_NUM_THREADS']} threads" in result.device
        assert result.logged == sum(record.logged for record in transcript.records()) > 0
    if LINUX and os.uname().machine == "x86_64":
        assert "DEFAULT" in elsewhere[0].device or "NO AVX" in elsewhere[0].device  # as older PyTorch calls it


def test_the_result_is_plain_data(elsewhere: list[ReplayResult]) -> None:
    again = json.loads(json.dumps(elsewhere[0].to_json()))
    assert again["verdict"] == "match"
    assert again["steps"] == [0, STEPS + 1]
    # Its data were not declared. The formulas of its optimizer were read from it.
    assert [finding["id"] for finding in again["findings"]] == ["data.not_precommitted"]


@pytest.mark.skipif(not LINUX, reason="confinement is Linux's")
def test_the_worker_says_what_it_gave_up(elsewhere: list[ReplayResult]) -> None:
    assert {"memory", "processor-time"} <= set(elsewhere[0].confinement)


def test_progress_is_told_and_a_stop_gives_the_memory(run: Path) -> None:
    told: list[tuple[int, int]] = []
    salt = os.urandom(32)
    result = replay(run, stop=(3, 5), salt=salt, progress=lambda done, total: told.append((done, total)))
    assert result.verdict == "match"
    assert told == [(1, 1)], "the nearest checkpoint is the one before step 3"
    assert result.live is not None
    sizes = sorted(size for size, _ in result.live)
    assert sizes[-3:] == [40 * 200 * 4] * 3, "the largest: a weight and its two moments"
    assert result.head == Transcript.open(run).head(2).hex()
    assert result.running is not None


# --- where roundings really go the other way ------------------------------------------------------------------------


def ties(generator: torch.Generator) -> Tensor:
    """Rows that add up to half way between two float32, with terms so large that float64 loses some of it in any order.

    Each row is 1, 3*2^-24, and 31 numbers of about 2^30 with their negatives, shuffled.
    """
    large = (torch.randint(0, 1 << 20, (5, 31), generator=generator) / 2**20 + 1) * 2.0**29
    rows = torch.cat([torch.ones(5, 1), torch.full((5, 1), 3 * 2.0**-24), large, -large], 1)
    return torch.stack([row[torch.randperm(64, generator=generator)] for row in rows])


@pytest.fixture(scope="module")
def contested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that another matrix product rounds differently again and again."""
    generator = torch.Generator().manual_seed(2)

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(64, 3, bias=False)
        nn.init.ones_(model.weight)
        return model, torch.optim.SGD(model.parameters(), lr=0.0)

    def step(batch: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    path = tmp_path_factory.mktemp("contested") / "run"
    train(path, build, step, [ties(generator) for _ in range(3)])
    return path


OTHER_PRODUCTS = {"MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
"""The matrix products of the oldest processor that the library knows."""
needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch multiplies without MKL")


@needs_mkl
def test_the_log_decides_where_devices_differ(contested: Path) -> None:
    result = replay(contested, env=OTHER_PRODUCTS)
    assert result.verdict == "match"
    assert 0 < result.followed <= result.logged
    assert result.state == Transcript.open(contested).step(3).state.hex()


@needs_mkl
def test_without_its_log_a_run_differs_elsewhere_and_that_accuses_nobody(contested: Path, tmp_path: Path) -> None:
    """A lost log is like a bound that is too small: few elements near a boundary explain the difference."""

    def without_log(_: int, tape: Tape, fields: dict[str, Any]) -> None:
        fields["rounding"] = rounding_log.encode([])
        fields["logged"] = 0

    result = replay(forge(contested, tmp_path / "bare", without_log), env=OTHER_PRODUCTS)
    assert (result.verdict, result.followed) == ("inconclusive", 0)
    assert result.first_difference is not None
    assert result.first_difference["operation"] == "mm.default"
    assert not [finding for finding in result.findings if finding.severity == "violation"]


# --- what must not reach the parent ---------------------------------------------------------------------------------


def test_a_tape_that_kills_its_process_kills_no_other(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ReplayWorkerError, match=r"signal|exit code") as caught:
        replay(forge(run, tmp_path / "forged", at_step(2, crash)))
    assert caught.value.reason == "replay.worker"
    assert caught.value.finding().id == "replay.worker"


def hidden_terabyte(tape: Tape, fields: dict[str, Any]) -> None:
    """Memory that the tape does not say it makes."""
    tape.nodes.insert(0, Node("zeros.default", (("l", (1 << 38,)),), {}, (None,), ()))
    tape.frees = [(at + 1, slot) for at, slot in tape.frees]


def test_memory_that_a_tape_hides_is_not_to_be_had(run: Path, tmp_path: Path) -> None:
    result = replay(forge(run, tmp_path / "forged", at_step(2, hidden_terabyte)), limits=Limits(memory=1 << 30))
    assert result.verdict == "inconclusive"  # an honest run may need more memory than this machine has
    assert "tape.too_large" in [f.id for f in result.findings]
    assert "tape.malformed" not in [f.id for f in result.findings]


def test_time_that_runs_out_is_the_workers_end(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ReplayWorkerError) as caught:
        replay(forge(run, tmp_path / "endless", at_step(2, endless)), limits=Limits(seconds=2))
    assert caught.value.reason == "replay.worker"


def test_a_device_that_is_not_there_is_an_error_and_not_a_verdict(run: Path) -> None:
    with pytest.raises(WeighbridgeError):
        replay(run, device="cuda:99")


# --- what the parent refuses at once --------------------------------------------------------------------------------


@pytest.mark.parametrize("salt", [None, b"", bytes(31), bytes(33)])
def test_a_stop_needs_a_salt(run: Path, salt: bytes | None) -> None:
    with pytest.raises(UsageError, match="salt"):
        replay(run, stop=(1, 0), salt=salt)


def test_a_directory_that_is_no_transcript_is_an_error_with_its_code(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError) as caught:
        replay(tmp_path)
    assert caught.value.reason == "transcript.file.missing"


def test_limits_cannot_be_changed_by_accident() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Limits().seconds = 0  # type: ignore[misc]
