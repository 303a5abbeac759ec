"""A run whose steps keep sketches of their rounding logs is inspected on its chip like any other."""

from __future__ import annotations

from pathlib import Path

import torch
from redteam.on_chips import FORMULAS, batch_of
from support.station import Station, ids
from torch import nn

from firmware_sim import Shim
from prover import Recorder


def test_an_honest_run_with_sketches_is_verified(tmp_path: Path) -> None:
    with Station(tmp_path) as station:
        prover = station.prover()
        process, out = station.chip("sketched"), station.runs / "sketched"
        with (
            Shim.connect(process.socket) as chip,
            Recorder(out, seed=1, chip=chip, checkpoint_every=2, formulas=FORMULAS, logs="sketch") as recorder,
        ):
            with recorder.initialisation():
                model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            recorder.attach(model, optimizer)
            for number in range(1, 5):
                batch = batch_of(number)
                with recorder.step(batch):
                    with torch.autocast("cpu", torch.bfloat16):
                        result = model(batch["x"])
                    if number == 3:
                        chip.request_snapshot()
                    result.float().square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
        station.register("sketched", prover)
        report = station.inspect("sketched")
        (shown,) = report["chips"]
        assert shown["verified"]
        assert [snapshot["status"] for snapshot in shown["snapshots"]] == ["explained"]
        assert ids(report, "violation") + ids(report, "warning") == []
