"""Programs that know nothing of Weighbridge train on real chips, and a Verifier explains what these have signed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.station import ROOT, Station

from weighbridge.transcript.reader import Transcript

SECONDS = 5
RATE_PER_DAY = 1.5 * 24 * 3600
"""Some seven snapshots while a script trains; none would be less than one run in a thousand."""

PLAIN = """
import sys, time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate


class Rows(Dataset):
    def __init__(self, count):
        self.rows = np.random.default_rng(0).standard_normal((count, 16)).astype(np.float32)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return torch.from_numpy(self.rows[number] * 2), int(self.rows[number, :4].argmax())


class Hiding:
    '''Trains another model where batches are collated, which is not recorded.'''

    def __call__(self, rows):
        if not hasattr(self, "model"):
            self.model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        x = torch.randn(32, 64)
        (self.model(x) - x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return default_collate(rows)


class Native:
    '''The same with weights from outside.'''

    def __init__(self):
        self.weights = torch.from_numpy(np.ones((128, 128), dtype=np.float32)).requires_grad_()
        self.x = torch.from_numpy(np.eye(128, dtype=np.float32))

    def __call__(self):
        (self.weights @ self.x - self.x).square().mean().backward()
        with torch.no_grad():
            self.weights -= self.weights.grad
            self.weights.grad.zero_()


def main(seconds, collate=None, beside=lambda: None):
    begun = time.monotonic()
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    training = DataLoader(Rows(48), batch_size=8, shuffle=True, collate_fn=collate)
    rows = torch.from_numpy(Rows(32).rows)
    validation = DataLoader(TensorDataset(rows, rows[:, :4].argmax(1)), batch_size=16)
    while time.monotonic() - begun < seconds:
        model.train()
        for x, y in training:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            beside()
        model.eval()
        with torch.no_grad():
            print("right", sum((model(x).argmax(1) == y).sum().item() for x, y in validation))


if __name__ == "__main__":
    ways = {"honest": dict, "collating": lambda: {"collate": Hiding()}, "native": lambda: {"beside": Native()}}
    main(float(sys.argv[1]), **ways[sys.argv[2]]())
"""

TRAINER = """
import sys, time

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

BEGUN = time.monotonic()


class Rows(torch.utils.data.Dataset):
    def __init__(self, count):
        begins = np.random.default_rng(0).integers(0, 64, (count, 1))
        self.rows = (begins + 5 * np.arange(16)) % 64

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        ids = torch.tensor(self.rows[number])
        return {"input_ids": ids, "labels": ids}


class Ends(TrainerCallback):
    def on_step_end(self, arguments, state, control, **_):
        control.should_training_stop = time.monotonic() - BEGUN > float(sys.argv[1])


sizes = dict(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2)
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
arguments = TrainingArguments(
    output_dir=sys.argv[2], max_steps=200, learning_rate=3e-3, per_device_train_batch_size=4,
    gradient_accumulation_steps=2, weight_decay=0.01, lr_scheduler_type="cosine", warmup_steps=2, eval_strategy="steps",
    eval_steps=4, save_strategy="steps", save_steps=4, save_total_limit=2, load_best_model_at_end=True, report_to=[],
    use_cpu=True, disable_tqdm=True,
)
Trainer(model, arguments, train_dataset=Rows(32), eval_dataset=Rows(8), callbacks=[Ends()]).train()
"""


@pytest.fixture(scope="module")
def inspection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Station, dict[str, Any]]]:
    """Four scripts, each on a chip of its own, and one inspection of all."""
    pytest.importorskip("transformers", reason="of the extra `integrations`")
    root = tmp_path_factory.mktemp("station")
    (root / "plain.py").write_text(PLAIN)
    (root / "trainer.py").write_text(TRAINER)
    programs = {
        "plain": ["plain.py", str(SECONDS), "honest"],
        "trainer": ["trainer.py", str(4 * SECONDS), str(root / "out")],
        "collating": ["plain.py", str(SECONDS), "collating"],
        "native": ["plain.py", str(SECONDS), "native"],
    }
    with Station(root) as station:
        prover = station.prover()
        for name in programs:
            station.chip(name, prover, rate_per_day=RATE_PER_DAY / (3 if name == "trainer" else 1), hold=4096)
        with ThreadPoolExecutor(2) as pool:
            ended = list(pool.map(lambda item: recorded(station, *item), programs.items()))
        assert [each.returncode for each in ended] == [0, 0, 0, 0], ended
        assert "right" in ended[0].stdout
        assert not any("Undeclared" in each.stderr for each in ended)
        yield station, station.inspect(*programs)


def recorded(station: Station, name: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs an unchanged script on the chip `name`; again, if the chip took no snapshot meanwhile, which is chance."""
    for attempt in range(4):
        run = station.runs / f"{name}-{attempt}"
        command = [sys.executable, "-m", "weighbridge.cli", "record", "--out", str(run)]
        command += ["--chip", str(station.chips[name].socket), *arguments]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, cwd=station.root, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode or any(len(record.snapshots) > 0 for record in Transcript.open(run).records()):
            break
    return ended


def subjects(station: Station, name: str) -> set[str]:
    """What findings about a chip and its runs name."""
    return {station.ueids[name].hex(), *(Transcript.open(run).digest for run in station.runs.glob(f"{name}-*"))}


def chips(inspection: tuple[Station, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    station, report = inspection
    sites = {ueid.hex(): name for name, ueid in station.ueids.items()}
    return {sites[chip["ueid"]]: chip for chip in report["chips"]}


@pytest.mark.parametrize("name", ["plain", "trainer"])
def test_every_snapshot_of_an_unchanged_script_is_explained(
    inspection: tuple[Station, dict[str, Any]], name: str
) -> None:
    station, report = inspection
    chip = chips(inspection)[name]
    assert chip["verified"]
    assert chip["snapshots"]
    told = subjects(station, name)
    mine = [found for found in report["findings"] if any(each in found["subject"] for each in told)]
    assert {found["severity"] for found in mine} <= {"info"}, mine
    for snapshot in chip["snapshots"]:
        assert snapshot["replay"] is None or snapshot["replay"]["verdict"] == "match"


@pytest.mark.finding("snapshot.memory.unexplained")
@pytest.mark.parametrize("name", ["collating", "native"])
def test_a_model_that_is_trained_beside_the_recording_is_found(
    inspection: tuple[Station, dict[str, Any]], name: str
) -> None:
    """Neither what loads batches nor what is computed on weights from outside is recorded; the chip sees both."""
    station, report = inspection
    told = subjects(station, name)
    accused = [each for each in report["findings"] if any(subject in each["subject"] for subject in told)]
    assert "snapshot.memory.unexplained" in {each["id"] for each in accused if each["severity"] == "violation"}
    assert not chips(inspection)[name]["verified"]
