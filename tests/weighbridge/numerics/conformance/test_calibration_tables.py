"""Tables of calibrated factors: which one a recording takes, and that a replay takes no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.execution.replay import replay
from weighbridge.numerics.conformance import bound_policy, calibration_tables
from weighbridge.numerics.conformance.calibration_tables import DIRECTORY, committed, parse, read
from weighbridge.numerics.conformance.device_kind import device_kind, device_model, model_of

TESTS = Path(__file__).parents[3]
RECORD = """
import sys
from support.recordings import train
import torch
from torch import nn

def build():
    model = nn.Linear(64, 32)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)

def step(objects, batch):
    model, optimizer = objects
    with torch.autocast("cpu", torch.bfloat16, enabled=sys.argv[2] == "half"):
        loss = model(batch["x"]).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

from prover import Recorder
torch.manual_seed(0)
batches = [{"x": torch.randn(16, 64)} for _ in range(3)]
with Recorder(sys.argv[1], seed=3) as recorder:
    with recorder.initialisation():
        objects = build()
    recorder.attach(*objects)
    for batch in batches:
        with recorder.step(batch):
            step(objects, batch)
"""


HUGE = '{"device":"x","operations":{"mm":{"factor":1' + "0" * 400 + "}}}"


def table(device: str, times: float = 2.0) -> dict[str, Any]:
    """The committed table, measured on another device and with larger errors."""
    factors = {name: {"factor": times * factor} for name, factor in committed().factors.items()}
    return {"device": device, "operations": factors}


def record(run: Path, kind: str, tables: Path | None) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent, TESTS)))}
    environment |= {} if tables is None else {DIRECTORY: str(tables)}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RECORD, str(run), kind], env=environment, check=True, timeout=300
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A directory with a table of this processor and one of a GPU, and the runs that were recorded with it."""
    root = tmp_path_factory.mktemp("calibrated")
    (root / "tables").mkdir()
    for name, device in (("this", device_model("cpu")), ("gpu", "cuda Some GPU")):
        (root / "tables" / f"{name}.json").write_text(json.dumps(table(device, 3.0 if name == "gpu" else 2.0)))
    record(root / "half", "half", root / "tables")
    record(root / "single", "single", root / "tables")
    return root / "tables", root


@pytest.mark.slow
def test_a_replay_takes_the_table_that_the_draft_names(runs: tuple[Path, Path]) -> None:
    tables, root = runs
    found = replay(root / "half", env={DIRECTORY: str(tables)})
    assert (found.verdict, found.calibrated_on) == ("match", device_model("cpu"))
    assert found.calibrated > 0


@pytest.mark.slow
def test_a_replay_without_the_table_refuses_and_accuses_no_party(runs: tuple[Path, Path]) -> None:
    with pytest.raises(WeighbridgeError) as caught:
        replay(runs[1] / "half")
    assert caught.value.reason == "replay.calibration.unknown"
    assert DIRECTORY in caught.value.message


@pytest.mark.slow
def test_what_computes_nothing_in_16_bits_needs_no_table(runs: tuple[Path, Path]) -> None:
    found = replay(runs[1] / "single")
    assert (found.verdict, found.calibrated) == ("match", 0)


@pytest.mark.slow
def test_a_table_of_another_device_is_not_taken(runs: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text((runs[0] / "gpu.json").read_text())
    record(tmp_path / "run", "half", tmp_path)
    found = replay(tmp_path / "run")
    assert (found.verdict, found.calibrated_on) == ("match", committed().device)


def test_the_policy_of_a_device_is_that_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = parse(table(device_model("cpu"), 5.0))
    monkeypatch.setattr(calibration_tables, "tables", lambda: {committed().digest: committed(), mine.digest: mine})
    monkeypatch.setattr(bound_policy, "tables", calibration_tables.tables)
    assert calibration_tables.measured_on(device_model("cpu")) == mine
    assert calibration_tables.measured_on("cuda no such GPU") == committed()
    declared = bound_policy.declared({"policy": "mixed", "calibration": mine.digest})
    assert declared.known
    assert declared.factor("mm") == 1.0  # mixed: which factor holds depends on what is computed in
    assert dict(declared.factors) == dict(mine.factors)
    unknown = bound_policy.declared({"policy": "calibrated", "calibration": "ab" * 32})
    assert not unknown.known


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["device", "operations", "factor", "mm"]), inner, max_size=4)
        ),
        max_leaves=20,
    )
)
def test_any_json_is_a_table_or_is_refused(raw: Any) -> None:
    try:
        made = parse(raw)
    except (ValueError, TypeError, KeyError, AttributeError):
        return
    assert made.factors
    assert all(0 < factor <= 1e6 for factor in made.factors.values())


@pytest.mark.parametrize(
    "text", ["", "{}", "[" * 100_000, json.dumps(table("x", 0.0)), json.dumps(table("x", 1e9)), HUGE]
)
def test_a_file_that_is_no_table_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(UsageError, match=r"bad\.json"):
        read(tmp_path / "bad.json")


def test_a_model_of_device_is_the_same_from_its_kind() -> None:
    assert model_of(device_kind("cpu")) == device_model("cpu")
    assert model_of("cuda NVIDIA H100, torch 2.13.0") == "cuda NVIDIA H100"
    assert model_of("something else") == ""
