"""Training that was not recorded and does not cooperate is interrupted all the same, at random, and seen as it is."""

from __future__ import annotations

import mmap
import time
from pathlib import Path

import pytest
import torch
from support.chip_station import ChipStation
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from firmware_sim import ChipProcess, Shim
from weighbridge.core.digests import Leaf
from weighbridge.core.treehash.tree import storage_digest

HOLD = 30


@pytest.fixture
def station(tmp_path: Path) -> ChipStation:
    return ChipStation.create(tmp_path)


def chip_of(station: ChipStation, per_second: float) -> ChipProcess:
    return station.chip(rate_per_day=per_second, clock_speed=86_400.0, hold=HOLD)


def leaves_of(model: nn.Module, salt: bytes) -> list[Leaf]:
    return [(p.untyped_storage().nbytes(), storage_digest(p.untyped_storage(), salt)) for p in model.parameters()]


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_plain_training_is_snapshotted_at_random(station: ChipStation, way: str) -> None:
    """Fused optimizer over lists, batches from a forked worker, a compiled model; no word of it to the chip."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    call = torch.compile(model, backend="aot_eager") if way == "compiled" else model
    data = torch.utils.data.TensorDataset(torch.randn(96, 16))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=1, multiprocessing_context="fork")
    truth: dict[int, list[Leaf]] = {}
    with chip_of(station, per_second=6.0) as chip:
        with Shim.connect(chip.socket) as shim:
            shim.on_snapshot(lambda index: truth.update({index: leaves_of(model, shim._salt)}))
            end = time.monotonic() + 30
            while len(truth) < 4 and time.monotonic() < end:
                for (x,) in loader:
                    optimizer.zero_grad()
                    call(x).square().mean().backward()
                    optimizer.step()
        snapshots = [token for token in station.log(chip) if token.kind == "snapshot"]
        assert [token.index for token in snapshots] == list(truth)
        assert len(truth) >= 4
        for token in snapshots:
            assert not token.body["safepoint"]
            assert token.body["held"] == HOLD or token is snapshots[-1]  # the last may be taken when the shim leaves
            _, leaves = station.open(chip, token.index)
            assert all(leaf in leaves for leaf in truth[token.index])
    counted = [(int(token.body["kernels"]), int(token.body["flops"])) for token in snapshots]
    assert counted == sorted(counted)
    assert counted[-1][1] > counted[0][1] > 0
    assert len({token.body["root"] for token in snapshots}) == len(snapshots)


def test_the_stall_is_measured(station: ChipStation) -> None:
    """Hashing 64 MiB takes longer than hashing next to nothing, and both are logged."""
    with station.chip(allow_forced=True) as chip:
        with Shim.connect(chip.socket) as shim:
            small = torch.zeros(8)
            shim.request_snapshot()
            shim.safepoint(0, 0, bytes(32), bytes(32), lambda: None)
            large = torch.ones(16 << 20)
            shim.request_snapshot()
            shim.safepoint(0, 1, bytes(32), bytes(32), lambda: None)
            assert small.numel() + large.numel() > 0
        stalls = [int(token.body["stall_us"]) for token in station.log(chip) if token.kind == "snapshot"]
    assert 0 < stalls[0] < stalls[1]


def test_what_nobody_can_look_at_is_counted(station: ChipStation) -> None:
    """The interpreter and freed blocks are memory too; a snapshot says how much there is of it."""
    with station.chip(allow_forced=True) as chip:
        with Shim.connect(chip.socket) as shim:
            shim.request_snapshot()
            shim.safepoint(0, 0, bytes(32), bytes(32), lambda: None)
            behind = mmap.mmap(-1, 64 << 20)  # no tensor, so no kernel ever meets it; and no memory freed before
            for page in range(0, len(behind), mmap.PAGESIZE):
                behind[page] = 1
            shim.request_snapshot()
            shim.safepoint(0, 1, bytes(32), bytes(32), lambda: None)
            assert len(behind) == 64 << 20
        first, second = (token for token in station.log(chip) if token.kind == "snapshot")
    assert int(first.body["unobserved"]) > 50 << 20
    assert 60 << 20 < int(second.body["unobserved"]) - int(first.body["unobserved"]) < 80 << 20
    assert first.body["root"] == second.body["root"]


def test_unhooking_the_shim_is_outside_the_simulation(station: ChipStation) -> None:
    """Who runs kernels behind the shim's back is not seen here. On a real chip there is no shim to go behind."""
    with station.chip(allow_forced=True) as chip:
        with Shim.connect(chip.socket) as shim:
            before = (shim.kernels, shim.flops)
            with _disable_current_modes():
                hidden = torch.randn(64, 64) @ torch.randn(64, 64)
            assert (shim.kernels, shim.flops) == before
            shim.request_snapshot()
            index = shim.safepoint(0, 0, bytes(32), bytes(32), lambda: None)
        assert index is not None
        assert station.open(chip, index)[1] == []
    assert hidden.numel() == 4096
