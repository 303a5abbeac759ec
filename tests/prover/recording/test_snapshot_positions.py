"""Snapshots of honest programs of every habit, on a real chip: the replay to the position finds the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.station import Station
from torch import Tensor, nn

from firmware_sim import Shim
from prover import Recorder
from verifier.checks.memory import Accounting, account
from verifier.contact.clients import ChipClient
from weighbridge.attest import tokens
from weighbridge.core.digests import region_digest
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tensor_file import raw_bytes

STEPS = 4


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    with Station(tmp_path_factory.mktemp("station")) as station:
        station.chip("chip")
        yield station


def batch_of(step: int) -> dict[str, Tensor]:
    return {"x": torch.from_numpy(np.random.default_rng(step).standard_normal((16, 32)).astype(np.float32))}


def accounts(station: Station, run: Path) -> list[tuple[tuple[int, int], Accounting]]:
    """Replays to every snapshot of a transcript, in this process, and compares the memory."""
    found = []
    transcript = Transcript.open(run)
    with ChipClient(station.chips["chip"].address, station.verifier) as client:
        for record in transcript.records():
            for _, index, op in record.snapshots:
                *_, data = client.entries(index + 1)
                opening = client.open_snapshot(tokens.read_own(data))
                request = {
                    "path": run, "steps": None, "device": "cpu", "stop": (record.step, op), "salt": opening.salt.hex(),
                    "memory": 1 << 30, "seconds": 60,
                }  # fmt: skip
                with torch.no_grad():
                    result = Replay(request, [], lambda _: None).run()
                assert result["verdict"] == "match"
                live = [(size, bytes.fromhex(keyed)) for size, keyed in result["live"]]
                near = [t for s in (record.step - 1, record.step) for t in transcript.batch(s).values()]
                batches = [(len(raw_bytes(t)), region_digest(raw_bytes(t), opening.salt)) for t in near]
                found.append(((record.step, op), account(opening.leaves, live, batches)))
    return found


def explained(station: Station, run: Path) -> list[tuple[int, int]]:
    """Returns the positions of a transcript's snapshots, which must all be explained to the byte."""
    found = accounts(station, run)
    for position, accounting in found:
        assert (accounting.unexplained, accounting.missing) == (0, 0), position
        assert accounting.explained > 10_000
    return [position for position, _ in found]


def train(
    station: Station,
    run: Path,
    step: Callable[[Recorder, Shim, nn.Module, torch.optim.Optimizer, int], object],
) -> None:
    with Shim.connect(station.chips["chip"].socket) as chip, Recorder(run, seed=1, chip=chip) as recorder:
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        recorder.attach(model, optimizer)
        for number in range(1, STEPS + 1):
            step(recorder, chip, model, optimizer, number)


def test_what_dies_between_steps_is_gone_when_the_next_begins(station: Station, tmp_path: Path) -> None:
    """A step in a function of its own leaves results behind that die when the function returns."""

    def one(recorder: Recorder, model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        batch = batch_of(number)
        with recorder.step(batch):
            out = model(batch["x"])
            wide = out.repeat(1, 8)
            wide.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def step(recorder: Recorder, chip: Shim, model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        one(recorder, model, optimizer, number)
        if number == 2:
            chip.request_snapshot()

    train(station, tmp_path / "run", step)
    assert explained(station, tmp_path / "run") == [(3, 0)]


def test_what_dies_first_thing_in_a_step_is_there_when_it_begins(station: Station, tmp_path: Path) -> None:
    """Gradients that the step begins by dropping."""

    def step(recorder: Recorder, chip: Shim, model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        batch = batch_of(number)
        if number in (2, 4):
            chip.request_snapshot()
        with recorder.step(batch):
            optimizer.zero_grad()
            model(batch["x"]).square().mean().backward()
            optimizer.step()

    train(station, tmp_path / "run", step)
    assert explained(station, tmp_path / "run") == [(2, 0), (4, 0)]


def test_a_tensor_made_anew_between_steps(station: Station, tmp_path: Path) -> None:
    """A mask that enters without an origin and is dropped again; it counts as undeclared, and memory still adds up."""

    def step(recorder: Recorder, chip: Shim, model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        batch = batch_of(number)
        with recorder.step(batch):
            mask = torch.from_numpy(np.tri(16, 32, k=number, dtype=np.float32))
            loss = model(batch["x"] * mask).square().mean()
            del mask
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if number == 3:
            chip.request_snapshot()

    train(station, tmp_path / "run", step)
    assert explained(station, tmp_path / "run") == [(4, 0)]


def test_cycles_are_found_before_a_step_begins(station: Station, tmp_path: Path) -> None:
    def step(recorder: Recorder, chip: Shim, model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        batch = batch_of(number)
        with recorder.step(batch):
            cycle: list[object] = [model(batch["x"]).repeat(1, 8).square()]
            cycle.append(cycle)
            cycle[0].mean().backward()  # type: ignore[attr-defined]
            optimizer.step()
            optimizer.zero_grad()
            del cycle
        if number == 2:
            chip.request_snapshot()

    train(station, tmp_path / "run", step)
    assert explained(station, tmp_path / "run") == [(3, 0)]


def test_weights_that_no_step_uses(station: Station, tmp_path: Path) -> None:
    """A model that existed before the chip was attached, half of it not in use."""
    used, idle = nn.Linear(32, 64), nn.Linear(64, 128)
    model = nn.ModuleList([used, idle])
    optimizer = torch.optim.SGD(used.parameters(), lr=0.1)
    with Shim.connect(station.chips["chip"].socket) as chip, Recorder(tmp_path / "run", seed=1, chip=chip) as recorder:
        recorder.attach(model, optimizer)
        chip.request_snapshot()
        for number in range(1, 3):
            batch = batch_of(number)
            with recorder.step(batch):
                used(batch["x"]).square().mean().backward()
                chip.request_snapshot()
                optimizer.step()
                optimizer.zero_grad()
    positions = explained(station, tmp_path / "run")
    assert positions[0] == (1, 0)
    assert len(positions) == 3
