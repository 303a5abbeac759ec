"""`weighbridge record`: a script that knows nothing of Weighbridge, with its own exit code and output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import answer, fails, weighbridge
from weighbridge.cli.bench.layout import DEFAULT, Bench, Settings
from weighbridge.cli.record import socket_of
from weighbridge.core.errors import UsageError
from weighbridge.transcript.reader import Transcript

ROOT = Path(__file__).parents[2]

SCRIPT = """
import argparse, sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from beside import RATE


class Rows(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, number):
        row = np.random.default_rng(number).standard_normal(8).astype(np.float32)
        return torch.from_numpy(row) * 2, int(row[:3].argmax())


parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--end", default="well")
options = parser.parse_args()


def main():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    loader = DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=options.workers)
    for epoch in range(2):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if options.end == "badly" and epoch:
                raise RuntimeError("it failed")
        model.eval()
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in DataLoader(Rows(), batch_size=16))
        print("epoch", epoch, right)
    torch.save(model.state_dict(), Path(__file__).with_name("model.pt"))


if __name__ == "__main__":
    assert __file__ == sys.argv[0], sys.argv
    main()
    if options.end not in ("well", "badly"):
        sys.exit(int(options.end) if options.end.isdecimal() else options.end)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("RATE = 1e-2\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def python(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    import os

    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_an_unchanged_script_is_recorded_and_replays_elsewhere(script: Path, tmp_path: Path) -> None:
    """With workers that load its data, and in another process with another instruction set."""
    run = tmp_path / "run"
    ran = python("-m", "weighbridge.cli", "record", "--out", run, script, "--workers", "2")
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[:2] for line in ran.stdout.splitlines()] == [["epoch", "0"], ["epoch", "1"]]
    assert "Warning" not in ran.stderr
    assert (tmp_path / "model.pt").is_file()
    assert Transcript.open(run).steps == 13
    replayed = python("-m", "weighbridge.cli", "replay", run, "--json", ATEN_CPU_CAPABILITY="default")
    assert replayed.returncode == 0, replayed.stderr
    assert {finding["severity"] for finding in json.loads(replayed.stdout)["findings"]} <= {"info"}


@pytest.mark.parametrize(("end", "code", "complete"), [("well", 0, True), ("7", 7, False), ("in tears", 1, False)])
def test_the_exit_code_is_the_scripts_own(script: Path, tmp_path: Path, end: str, code: int, complete: bool) -> None:
    found, out, err = weighbridge("record", "--out", tmp_path / "run", script, "--end", end)
    assert found == code
    assert out.count("epoch") == 2
    assert ("in tears" in err) == (end == "in tears")
    transcript = Transcript.open(tmp_path / "run")
    assert transcript.manifest.complete is complete
    assert transcript.steps == 13
    assert answer("replay", tmp_path / "run")["verdict"] == "match"


def test_a_script_that_fails_prints_its_own_traceback(script: Path, tmp_path: Path) -> None:
    found, _, err = weighbridge("record", "--out", tmp_path / "run", script, "--end", "badly")
    assert found == 1
    assert "RuntimeError: it failed" in err
    assert "prover" not in err
    assert "runpy" not in err
    assert not Transcript.open(tmp_path / "run").manifest.complete


def test_what_cannot_be_recorded_is_said(script: Path, tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("print('nothing')\n")
    (tmp_path / "silent.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "try:\n"
        "    torch.linalg.svdvals(model(torch.ones(2, 2))).sum().backward()\n"
        "    optimizer.step()\n"
        "except Exception:\n"
        "    pass\n"
    )
    assert fails("record", script) == "usage"
    assert fails("record", "--out", tmp_path / "run", tmp_path / "no.py") == "usage"
    assert fails("record", "--out", tmp_path / "run", "--policy", "lax", script) == "usage"
    assert fails("record", "--out", tmp_path / "run", "--evaluation", "never", script) == "usage"
    code, out, err = weighbridge("record", "--out", tmp_path / "idle", tmp_path / "idle.py")
    assert (code, out) == (2, "nothing\n")
    assert "nothing was trained" in err
    code, _, err = weighbridge("record", "--out", tmp_path / "silent", tmp_path / "silent.py")
    assert code == 2
    assert "ended after step 0" in err


def test_the_key_of_a_party_signs(script: Path, tmp_path: Path) -> None:
    """So that supplements bind it in disputes. `regenerate` has to be given that key, as no other copy is kept."""
    key = tmp_path / "own.key"
    assert fails("record", "--out", tmp_path / "run", "--key", key, script) == "usage"
    code, public, _ = weighbridge("rules", "key", key)
    assert code == 0
    beacon = ("--logs", "on-demand", "--beacon", tmp_path)
    assert fails("record", "--out", tmp_path / "run", "--key", key, *beacon, script) == "usage"
    code, _, err = weighbridge("record", "--out", tmp_path / "run", "--key", key, "--logs", "on-demand", script)
    assert code == 0, err
    assert Transcript.open(tmp_path / "run").manifest.public.hex() == public.strip()
    assert not (tmp_path / "run.key").exists()
    assert answer("regenerate", tmp_path / "run", "--steps", "2:3", "--key", key)["written"] == 1


HALF = """
import torch
from torch import nn

torch.manual_seed(5)
model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for number in range(2):
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 64)).float(), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("unit", ["a100", "h100"])
def test_a_unit_that_is_not_here_needs_its_model(tmp_path: Path, unit: str) -> None:
    script = tmp_path / "half.py"
    script.write_text(HALF)
    code, _, err = weighbridge("record", "--out", tmp_path / "none", "--policy", f"unit-{unit}", script)
    assert code == 2
    assert f"nothing here computes products as {unit} does" in err
    assert "record --unit-model" in err
    code, _, err = weighbridge("record", "--out", tmp_path / "run", "--policy", f"unit-{unit}", "--unit-model", script)
    assert code == 0, err
    assert Transcript.open(tmp_path / "run").draft["policy"] == f"unit-{unit}"
    code, out, _ = weighbridge("replay", tmp_path / "run")
    assert code == 0
    assert "declared unit: of " in " ".join(out.split())
    assert "all are the unit's" in " ".join(out.split())
    assert fails("record", "--out", tmp_path / "other", "--unit-model", script) == "usage"
    assert fails("doctor", "--policy", f"unit-{unit}", script) == "usage"


def test_a_chip_of_a_bench_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path stays a path, and so does what is in the way of a name."""
    monkeypatch.chdir(tmp_path)
    assert socket_of("honest") == "honest", "there is no bench"
    Bench(DEFAULT, Settings(("honest", "other"), 1.0, 1.0)).keep()
    assert Path(socket_of("other")) == tmp_path / DEFAULT / "chips" / "other" / "socket"
    assert socket_of("chips/other") == "chips/other"
    with pytest.raises(UsageError, match="has the chips honest, other, and no 'onest'"):
        socket_of("onest")
    (tmp_path / "honest").touch()
    assert socket_of("honest") == "honest"
