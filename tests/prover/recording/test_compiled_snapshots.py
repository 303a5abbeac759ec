"""Snapshots in the middle of steps that run as programs, on a real chip."""

from __future__ import annotations

from collections.abc import Iterator
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

STEPS = 9


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    with Station(tmp_path_factory.mktemp("station")) as station:
        station.chip("chip")
        yield station


def batch_of(step: int) -> dict[str, Tensor]:
    return {"x": torch.from_numpy(np.random.default_rng(step).standard_normal((16, 32)).astype(np.float32))}


def replayed(station: Station, run: Path) -> dict[tuple[int, int], tuple[Accounting, bytes]]:
    """Replays to every snapshot of a transcript; returns how memory compares, and the step's digest so far."""
    found = {}
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
                running = bytes.fromhex(result["running"])
                found[record.step, op] = account(opening.leaves, live, batches), running
    return found


def test_a_snapshot_between_any_two_parts_of_a_program_is_explained(
    station: Station, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[tuple[int, int], bytes] = {}
    with (
        Shim.connect(station.chips["chip"].socket) as chip,
        Recorder(tmp_path / "run", seed=1, chip=chip, device="cpu") as recorder,
    ):
        plain = chip.safepoint

        def safepoint(step: int, op: int, running: bytes, *others: object) -> int | None:
            told[step, op] = running
            return plain(step, op, running, *others)  # type: ignore[arg-type]

        monkeypatch.setattr(chip, "safepoint", safepoint)
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        recorder.attach(model, optimizer)
        noise = torch.Generator().manual_seed(2)

        def function(batch: dict[str, Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss = model(batch["x"] + torch.rand(16, 32, generator=noise)).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        compiled = recorder.compile(function)
        moments = 0
        offer = recorder._steps.offer

        def ask() -> None:
            nonlocal moments
            moments += 1
            if moments % 23 == number % 23:
                chip.request_snapshot()
            offer()

        monkeypatch.setattr(recorder._steps, "offer", ask)
        for number in range(STEPS):
            compiled(batch_of(number))
        assert compiled.compiled >= 4, compiled.reason
    found = replayed(station, tmp_path / "run")
    for position, (accounting, running) in found.items():
        assert (accounting.unexplained, accounting.missing) == (0, 0), position
        assert accounting.explained > 10_000
        assert told[position] == running
    within = {op for step, op in found if step > STEPS - compiled.compiled and op}
    assert len(within) >= 4
