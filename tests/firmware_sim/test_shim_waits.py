"""A real training process on a chip that waits for its witness: kernels stand still, and for good if it is refused."""

import threading
import time
from pathlib import Path

import pytest
import torch

from benchmarks.soak_chip import Rig
from firmware_sim import Shim
from weighbridge.core.errors import ChipError


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_no_kernel_runs_before_the_witness_has_the_snapshot(rig: Rig) -> None:
    with rig.serve() as address:
        pass  # A port that is free again: no service is there yet.
    with rig.chip(report="wait", witness=address, hold=0) as chip, Shim.connect(chip.socket) as shim:
        tensor = torch.ones(3)
        shim.request_snapshot()
        ready: list[float] = []
        answered = threading.Event()

        def serve() -> None:
            time.sleep(1.0)
            with rig.serve(address):
                ready.append(time.monotonic())
                answered.wait(60)

        witness = threading.Thread(target=serve, daemon=True)
        witness.start()
        tensor = tensor + 1
        done = time.monotonic()
        answered.set()
        witness.join()
        assert done >= ready[0]
        assert tensor.tolist() == [2.0, 2.0, 2.0]
        assert rig.witness.held(rig.ueid).size == 3  # a boot, the workload, and the snapshot


@pytest.mark.finding("chip.witness.silent")
def test_a_workload_that_was_not_let_on_runs_no_kernel(rig: Rig) -> None:
    """It may catch the error, but not go on: and the snapshot is in the log."""
    with rig.chip(report="wait", witness="127.0.0.1:9", patience_s=0.5, hold=0) as chip:
        with Shim.connect(chip.socket) as shim:
            tensor = torch.ones(3)
            shim.request_snapshot()
            with pytest.raises(ChipError) as caught:
                tensor + 1
            assert caught.value.reason == "chip.witness.silent"
            with pytest.raises(ChipError):
                tensor + 1
        tokens, size, _ = rig.log(chip)
        assert [each.kind for each in tokens] == ["boot", "event", "snapshot", "event"]
        assert size == 4
        with pytest.raises(ChipError) as refused:
            Shim.connect(chip.socket)
        assert refused.value.reason == "chip.witness.silent"
