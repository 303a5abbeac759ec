"""`weighbridge doctor`: what stands in the way of recording a script, by line, and that nothing is left behind.

Every examination here is of a script as a user writes it, in real processes. Where the doctor sees nothing in the way,
`test_what_is_clear_is_recorded_and_replays` records and replays the whole script.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bench_integrations import plain
from tests.support.command_line import answer, fails, weighbridge

EXAMPLES = Path(__file__).parents[2] / "examples"

HEAD = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rows = torch.from_numpy(np.random.default_rng(0).standard_normal((64, 8), dtype=np.float32))
data = TensorDataset(rows, rows[:, :3].argmax(dim=1))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
weights = torch.tensor([1.0, 2.0, 0.5])
{made}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
number = 0
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        number += 1
        {before}
        loss = nn.functional.cross_entropy(model(x), y{weight})
        {loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {after}
    print("epoch", epoch)
"""


def write(folder: Path, **parts: str) -> Path:
    """Writes a script that trains, with lines of its own in some places."""
    places = {"made": "", "before": "pass", "weight": "", "loss": "pass", "after": "pass"}
    script = folder / "train.py"
    script.write_text(HEAD.format_map(places | parts))
    return script


def doctor(*arguments: str | Path, code: int) -> Any:
    """Runs `weighbridge doctor --json`; returns what it says."""
    found, out, err = weighbridge("doctor", "--json", *arguments)
    assert (found, err) == (code, ""), (found, out, err)
    return json.loads(out)


def told(said: Any, *kinds: str) -> list[tuple[str, str]]:
    """What was found of some kinds: (identifier, the text of the line)."""
    return [
        (finding["id"], finding["subject"].partition(": ")[2])
        for finding in said["findings"]
        if finding["evidence"]["kind"] in kinds
    ]


GRAVE = ("refused", "reported")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that only this test uses."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.mark.finding("record.script.slow")
def test_a_script_with_nothing_in_the_way(tmp_path: Path, scratch: Path) -> None:
    """Costs are measured, the replay matches, and nothing is left: no transcript, no compiled module, no output."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "beside.py").write_text("RATE = 1e-2\n")
    script = write(folder, made="from beside import RATE")
    said = doctor(script, code=0)
    assert (said["clear"], said["steps"], said["ended"]) == (True, 5, "enough")
    assert said["replay"]["verdict"] == "match"
    assert told(said, *GRAVE, "note") == []
    assert {identifier for identifier, _ in told(said, "slow")} == {"record.script.slow"}
    costs = said["costs"]
    assert costs["timed_steps"] == 3
    assert costs["step_seconds"] > costs["plain_seconds"] > 0
    assert costs["slowdown"] == pytest.approx(costs["step_seconds"] / costs["plain_seconds"])
    assert costs["memory_bytes"]["host"] > costs["plain_memory_bytes"]["host"] > 1 << 26
    assert 8 * 8 * 4 < costs["transcript_bytes"] < 10_000  # of which the batch is most
    assert 0 < costs["log_bytes"] < costs["transcript_bytes"]
    weights = 4 * (8 * 16 + 16 + 16 * 3 + 3)
    # Beside the weights: their gradients, two averages of them, four counts of steps, and the last loss.
    assert costs["checkpoint_bytes"] == 4 * weights + 4 * 4 + 4
    lines = {line["line"].partition(": ")[2]: line for line in costs["lines"]}
    assert lines["optimizer.step()"]["seconds"] > lines["optimizer.step()"]["plain_seconds"] > 0
    assert said["arithmetic"] == {"cpu": None}
    assert sorted(path.name for path in folder.rglob("*")) == ["beside.py", "train.py"]
    assert not list(scratch.glob("weighbridge-*"))


def test_all_that_is_refused_is_told_in_one_go(tmp_path: Path) -> None:
    """With what follows from it: complex numbers, results that training uses, gradients through them."""
    script = write(
        tmp_path,
        before="scale = torch.distributions.Gamma(torch.ones(8), torch.ones(8)).sample() + 1",
        loss="loss = loss + torch.linalg.svdvals(model[0].weight).max() / 9 + torch.fft.rfft(x).abs().mean()",
        after="scale.mul_(torch.linalg.eigvalsh(torch.eye(8) * scale))",
    )
    said = doctor("--steps", "3", script, code=1)
    assert [identifier for identifier, _ in told(said, *GRAVE)] == ["record.operation.refused"] * 4
    refused = [finding for finding in said["findings"] if finding["evidence"]["kind"] == "refused"]
    assert [finding["evidence"]["operation"] for finding in refused] == [
        "aten._standard_gamma.default",
        "aten._linalg_svd.default",
        "aten._fft_r2c.default",
        "aten._linalg_eigh.default",
    ]
    assert all(finding["evidence"]["steps"] == [1, 2, 3] for finding in refused)
    assert all(finding["evidence"]["remedy"] and finding["subject"].startswith(str(script)) for finding in refused)
    assert said["steps"] == 3


@pytest.mark.finding("record.script.differs")
def test_a_write_through_an_array_is_told_and_what_comes_after_it_too(tmp_path: Path) -> None:
    """Such an array is read-only in a recording; the doctor goes on with one that is not."""
    write_ = "w = model[0].weight.detach().numpy(); np.clip(w, -0.1, 0.1, out=w); torch.linalg.svdvals(model[2].weight)"
    script = write(tmp_path, after=write_)
    said = doctor("--steps", "3", script, code=1)
    assert [identifier for identifier, _ in told(said, *GRAVE)] == ["record.operation.refused", "record.script.differs"]
    assert {line for _, line in told(said, *GRAVE)} == {write_}
    assert any(".copy()" in finding["evidence"]["remedy"] for finding in said["findings"])
    assert said["replay"]["verdict"] is None


def test_memory_that_another_thread_changes_is_told(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        made="import threading",
        after="t = threading.Thread(target=lambda: model[0].bias.data.add_(1)); t.start(); t.join()",
    )
    said = doctor("--steps", "3", script, code=1)
    assert {identifier for identifier, _ in told(said, *GRAVE)} == {"record.state.changed"}
    assert all(
        "thread" in finding["evidence"]["remedy"] for finding in said["findings"] if finding["severity"] != "info"
    )


def test_a_rate_without_a_formula_is_reported_where_it_is_used(tmp_path: Path) -> None:
    """In so few steps it brings in too little to be held against a Prover, so nothing stands in the way."""
    script = write(tmp_path, before="optimizer.param_groups[0]['lr'] = 1e-3 * (1 + hash(str(number)) % 1000)")
    said = doctor(script, code=0)
    assert told(said, "reported") == [("tape.free_input", "optimizer.step()")]
    (finding,) = [finding for finding in said["findings"] if finding["id"] == "tape.free_input"]
    assert "scheduler" in finding["evidence"]["remedy"]
    assert said["replay"]["verdict"] == "match"


def test_class_weights_are_worth_knowing(tmp_path: Path) -> None:
    """Three numbers are too little to be held against a Prover; the remedy is told all the same, and helps."""
    weighted = ", weight=weights"
    said = doctor("--steps", "3", write(tmp_path, weight=weighted), code=0)
    line = f"loss = nn.functional.cross_entropy(model(x), y{weighted})"
    assert ("tape.free_input", line) in told(said, "note")
    (finding,) = [
        each for each in said["findings"] if each["id"] == "tape.free_input" and each["subject"].endswith(line)
    ]
    assert "train.py" in finding["message"], "it says where they were made"
    assert "register_buffer" in finding["evidence"]["remedy"]
    mended = write(tmp_path, weight=weighted, made="model.register_buffer('weights', weights)")
    assert "tape.free_input" not in {name for name, _ in told(doctor("--steps", "3", mended, code=0), "note")}


def test_what_enters_anew_in_every_step_is_reported(tmp_path: Path) -> None:
    """However little it is in the few steps that are examined."""
    said = doctor("--steps", "3", write(tmp_path, before="x = x * torch.tensor([0.5] * 8)"), code=1)
    assert told(said, *GRAVE) == [("tape.free_input", "x = x * torch.tensor([0.5] * 8)")]


@pytest.mark.finding("record.script.failed")
def test_a_script_that_fails_by_itself(tmp_path: Path) -> None:
    script = write(tmp_path, before="if number == 3: raise ValueError('the disc is full')")
    said = doctor(script, code=1)
    assert told(said, *GRAVE) == [("record.script.failed", "if number == 3: raise ValueError('the disc is full')")]
    assert said["output"][-1] == "ValueError: the disc is full"
    assert said["ended"] == "failed"


def test_a_script_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text("import time\ntime.sleep(3600)\n")
    said = doctor("--seconds", "3", script, code=1)
    assert told(said, *GRAVE) == [("record.script.failed", "")]
    assert "--seconds" in said["findings"][0]["evidence"]["remedy"]


def test_a_script_without_training(tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text("import torch\nprint(torch.randn(3).sum())\n")
    said = doctor(script, code=1)
    assert told(said, *GRAVE) == [("usage", "")]
    assert "trained nothing" in said["findings"][0]["message"]
    assert (said["steps"], said["ended"]) == (0, "itself")


@pytest.mark.finding("record.script.noted")
def test_what_is_worth_knowing(tmp_path: Path) -> None:
    """Of a script that fetches no batches, compiles its model, and keeps errors to itself."""
    script = tmp_path / "by_hand.py"
    script.write_text(
        "import numpy as np\n"
        "import torch\n"
        "from torch import nn\n"
        "x = torch.from_numpy(np.arange(512, dtype=np.float32).reshape(64, 8) / 512)\n"
        "model = torch.compile(nn.Linear(8, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)\n"
        "for step in range(50):\n"
        "    try:\n"
        "        loss = model(x[step : step + 8]).square().mean()\n"
        "        optimizer.zero_grad()\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "    except BaseException:\n"
        "        pass\n"
    )
    said = doctor("--steps", "3", script, code=0)
    assert said["steps"] == 3
    assert told(said, "note") == [
        ("record.script.noted", "model = torch.compile(nn.Linear(8, 1))"),
        ("record.script.noted", "loss = model(x[step : step + 8]).square().mean()"),
    ]


def test_what_a_person_reads(tmp_path: Path) -> None:
    script = write(tmp_path, loss="loss = loss + torch.linalg.svdvals(model[0].weight).max() / 9")
    code, out, _ = weighbridge("doctor", "--steps", "3", script)
    assert code == 1
    refused = out.partition("\n\n")[0].splitlines()
    assert refused[0] == "refused: a recording would end here"
    assert refused[1].startswith(f"  {script}:")
    assert "svdvals" in refused[1]
    assert refused[2].endswith("[record.operation.refused]")
    assert refused[3].startswith("    -> ")
    heads = [line.split()[0] for line in out.splitlines() if line and not line.startswith(" ")]
    assert heads[-6:] == ["time", "memory", "transcript", "arithmetic", "replay", "1"]
    assert "epoch" not in out


def test_where_nothing_stands_in_the_way_the_next_command_is_whole(tmp_path: Path) -> None:
    """It can be pasted: it has the options that were examined, and the script's own arguments."""
    script = write(tmp_path)
    code, out, _ = weighbridge("doctor", "--steps", "3", "--seed", "4", script, "--rate", "0.1", "a name")
    assert code == 0
    last = out.splitlines()[-1]
    assert last.endswith(f"weighbridge record --out RUN --seed 4 {script} --rate 0.1 'a name'"), last


def test_bad_usage(tmp_path: Path) -> None:
    script = write(tmp_path)
    assert fails("doctor", tmp_path / "no.py") == "usage"
    assert fails("doctor", "--policy", "lax", script) == "usage"
    assert fails("doctor", "--steps", "0", script) == "usage"


@pytest.mark.parametrize(
    ("name", "library", "ranks"),
    [
        ("workers", "torch", 1),
        pytest.param("accelerated", "accelerate", 1, marks=pytest.mark.soak),
        pytest.param("peft_lora", "peft", 1, marks=pytest.mark.soak),
        pytest.param("fsdp2", "torch", 2, marks=pytest.mark.soak),
    ],
)
def test_what_is_clear_is_recorded_and_replays(name: str, library: str, ranks: int, tmp_path: Path) -> None:
    """Examples without their lines: the doctor has nothing against them, and neither has a replay of the whole."""
    pytest.importorskip(library)
    script = tmp_path / f"{name}.py"
    script.write_text(plain((EXAMPLES / f"{name}.py").read_text())[0])
    said = doctor("--steps", "3", "--ranks", str(ranks), script, code=0)
    assert said["clear"]
    assert said["replay"]["verdict"] == "match"
    assert said["costs"]["slowdown"] > 0
    if ranks == 1:
        code, _, err = weighbridge("record", "--out", tmp_path / "run", script)
        assert code == 0, err
        replayed = answer("replay", tmp_path / "run")
        assert replayed["verdict"] == "match"
        assert {finding["severity"] for finding in replayed["findings"]} <= {"info"}
