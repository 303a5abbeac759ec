"""The shim on a CUDA device: memory there is hashed as it lies, also under kernels of autograd's own threads."""

from pathlib import Path

import pytest
import torch
from support.chip_station import ChipStation

from firmware_sim import Shim
from weighbridge.core.digests import region_digest


@pytest.mark.gpu
def test_a_snapshot_of_device_memory(tmp_path: Path) -> None:
    station = ChipStation.create(tmp_path)
    model = torch.nn.Linear(8, 4, device="cuda")
    batch = torch.randn(3, 8, device="cuda")
    with station.chip(allow_forced=True) as chip:
        with Shim.connect(chip.socket, weights=model.parameters()) as shim:
            model(batch).sum().backward()
            shim.request_snapshot()
            index = shim.safepoint(1, 0, b"r" * 32, b"h" * 32, lambda: None)
        assert index is not None
        salt, leaves = station.open(chip, index)
    parameters = list(model.parameters())
    tensors = [*parameters, *(p.grad for p in parameters if p.grad is not None), batch]
    contents = [bytes(t.detach().cpu().untyped_storage().tolist()) for t in tensors]
    assert leaves == sorted((len(each), region_digest(each, salt)) for each in contents)
