"""A table is measured here, and recordings and replays that are told where it lies take it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import weighbridge

from weighbridge.numerics.conformance.calibration_tables import committed, read
from weighbridge.numerics.conformance.device_kind import device_model


def calibrate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "weighbridge.cli", "calibrate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.slow
def test_a_table_of_this_processor_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "this.json"
    ran = calibrate("--out", str(out), "--only", "perceptron", "--json")
    assert ran.returncode == 0, ran.stderr
    said, table = json.loads(ran.stdout), read(out)
    assert (said["digest"], said["device"]) == (table.digest, device_model("cpu")) == (table.digest, table.device)
    assert {"addmm", "mm", "silu_backward", "native_layer_norm"} <= set(table.factors)
    wider = {name for name, factor in table.factors.items() if factor > committed().factors.get(name, 8.0)}
    assert set(said["wider"]) == wider


def test_a_wrong_choice_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    for arguments, says in (
        (("--out", str(tmp_path / "x.txt")), "ends with .json"),
        (("--out", str(tmp_path / "x.json"), "--only", "bert"), "--only takes gpt2"),
        (("--out", str(tmp_path / "x.json"), "--device", "tpu"), "--device takes cpu"),
    ):
        code, _, error = weighbridge("calibrate", *arguments)
        assert code == 2
        assert says in error
