"""The Recorder tests how this machine computes before it writes anything, and leaves the settings as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prover import Recorder
from weighbridge.core.errors import DeviceArithmeticError


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush subnormal numbers")
def test_a_process_that_flushes_subnormal_numbers_records_nothing(tmp_path: Path) -> None:
    torch.set_flush_denormal(True)
    try:
        with pytest.raises(DeviceArithmeticError, match="set_flush_denormal"), Recorder(tmp_path / "run", seed=1):
            pass
    finally:
        torch.set_flush_denormal(False)
    assert not (tmp_path / "run").exists()
    with Recorder(tmp_path / "run", seed=1) as recorder:
        recorder.attach(torch.nn.Linear(2, 2))


def test_vendor_kernels_are_off_inside_a_step_only(tmp_path: Path) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        outside = torch._C._get_mkldnn_enabled()
        with Recorder(tmp_path / "run", seed=1) as recorder:
            model = torch.nn.Linear(3, 2)
            recorder.attach(model)
            with recorder.step(torch.ones(4, 3)):
                model(torch.ones(4, 3)).sum().backward()
                inside = (torch._C._get_mkldnn_enabled(), torch.get_float32_matmul_precision())
        assert inside == (False, "highest")
        assert (torch._C._get_mkldnn_enabled(), torch.get_float32_matmul_precision()) == (outside, "medium")
    finally:
        torch.set_float32_matmul_precision(before)
