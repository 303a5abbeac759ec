"""Programs that are killed and run again from what they had saved: every attempt names the one it goes on from."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import prover
from prover.following.notes import UndeclaredInputWarning
from tests.prover.following.test_loops import OTHER_MACHINE, ROWS, data, loss_of, net
from weighbridge import replay
from weighbridge.core.errors import UsageError
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.parentage import declared, entered, held, unexplained
from weighbridge.transcript.reader import Transcript

ROOT = Path(__file__).parents[3]

PLAIN = """
import os, signal, sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAVED, KILLED, UPDATES, EVERY = Path(sys.argv[1]), int(sys.argv[2]), 16, 3


def main():
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((128, 16)).astype(np.float32))
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    done = 0
    if SAVED.exists():
        state = torch.load(SAVED, weights_only=True)
        for name, each in (("model", model), ("optimizer", optimizer), ("schedule", schedule)):
            each.load_state_dict(state[name])
        torch.set_rng_state(state["random"])
        done = state["done"]
    print("begins at", done)
    loader = DataLoader(TensorDataset(rows, rows[:, :4].argmax(1)), batch_size=8)
    for number, (x, y) in enumerate(loader):
        if number < done:
            continue
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
        done = number + 1
        if done % EVERY == 0:
            new = SAVED.with_suffix(".new")
            whole = {"model": model, "optimizer": optimizer, "schedule": schedule}
            state = {name: each.state_dict() for name, each in whole.items()}
            torch.save({**state, "random": torch.get_rng_state(), "done": done}, new)
            os.replace(new, SAVED)
        if done == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
    torch.save(model.state_dict(), SAVED.with_suffix(".end"))


main()
"""

TRAINER = """
import os, signal, sys

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

OUT, KILLED = sys.argv[1], int(sys.argv[2])


class Rows(torch.utils.data.Dataset):
    def __init__(self, count):
        begins = np.random.default_rng(0).integers(0, 64, (count, 1))
        self.rows = (begins + 5 * np.arange(16)) % 64

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        ids = torch.tensor(self.rows[number])
        return {"input_ids": ids, "labels": ids}


class Killed(TrainerCallback):
    def on_step_begin(self, arguments, state, control, **_):
        if state.global_step == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)


sizes = dict(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2)
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
arguments = TrainingArguments(
    output_dir=OUT, num_train_epochs=2, learning_rate=3e-3, per_device_train_batch_size=4, weight_decay=0.01,
    gradient_accumulation_steps=2, lr_scheduler_type="cosine", warmup_steps=2, save_strategy="steps", save_steps=2,
    report_to=[], use_cpu=True, disable_tqdm=True,
)
last = get_last_checkpoint(OUT) if os.path.isdir(OUT) else None
print("begins at", last)
trainer = Trainer(model, arguments, train_dataset=Rows(32), callbacks=[Killed()])
trainer.train(resume_from_checkpoint=last)
torch.save(model.state_dict(), OUT + ".end")
"""


def recorded(script: Path, out: Path, *arguments: object, resume: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs an unchanged script and records it."""
    command = [sys.executable, "-m", "weighbridge.cli", "record", "--out", str(out), *(["--resume"] if resume else [])]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command += [str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def severities(path: Path) -> set[str]:
    """Replays on another kind of machine."""
    result = replay(path, env=OTHER_MACHINE)
    assert result.verdict == "match"
    return {finding.severity for finding in result.findings}


def goes_on(later: Path, earlier: Path) -> int:
    """Returns the step of an attempt that a later one declares, and checks as a Verifier does that it held it all."""
    transcript, before = Transcript.open(later), Transcript.open(earlier)
    parent = declared(transcript)
    assert parent is not None
    assert (parent.transcript, parent.state) == (before.digest, before.step(parent.step - 1).state)
    salt = bytes(32)
    if parent.step in before.checkpoint_steps:
        assert unexplained(entered(transcript, salt), held(before.checkpoint(parent.step), salt)) == 0
    return parent.step


def same(one: Path, other: Path) -> bool:
    left, right = (torch.load(path, weights_only=True) for path in (one, other))
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_loop_that_is_killed_ends_as_if_it_were_not(tmp_path: Path) -> None:
    """Killed twice, in steps that chance chose; the second time possibly before anything new was saved.

    Not in a step that saved something: what it saved is in no transcript, as the next test says.
    """
    chance = random.Random(os.urandom(8))
    kills = sorted(chance.sample([step for step in range(4, 16) if step % 3], 2))
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    assert recorded(script, tmp_path / "whole", tmp_path / "whole.pt", 0, resume=False).returncode == 0
    for killed in kills:
        assert recorded(script, tmp_path / "run", tmp_path / "run.pt", killed).returncode == -signal.SIGKILL, kills
    ended = recorded(script, tmp_path / "run", tmp_path / "run.pt", 0)
    assert ended.returncode == 0, ended.stderr
    assert "Warning" not in ended.stderr
    assert f"the transcript is in {tmp_path / 'run-3'}" in ended.stderr
    assert same(tmp_path / "run.end", tmp_path / "whole.end")
    first, second, third = (tmp_path / name for name in ("run", "run-2", "run-3"))
    saved = [kill // 3 * 3 for kill in kills]
    assert goes_on(second, first) == saved[0] + 1, kills
    last = goes_on(third, second if saved[1] > saved[0] else first)
    assert last == saved[1] + 1 - (saved[0] if saved[1] > saved[0] else 0), kills
    assert all(severities(path) == {"info"} for path in (first, second, third))
    assert not list(tmp_path.glob("*.resume"))


@pytest.mark.soak
def test_what_a_step_saved_that_was_cut_off_is_in_no_transcript(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    assert recorded(script, tmp_path / "run", tmp_path / "run.pt", 6).returncode == -signal.SIGKILL
    ended = recorded(script, tmp_path / "run", tmp_path / "run.pt", 0)
    assert ended.returncode == 0, ended.stderr
    assert "are no state of a whole step" in ended.stderr
    assert declared(Transcript.open(tmp_path / "run-2")) is None


@pytest.mark.soak
def test_a_trainer_that_resumes_from_its_checkpoint_names_its_parent(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="of the extra `integrations`")
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    assert recorded(script, tmp_path / "whole", tmp_path / "whole-out", -1, resume=False).returncode == 0
    assert recorded(script, tmp_path / "run", tmp_path / "out", 5).returncode == -signal.SIGKILL
    ended = recorded(script, tmp_path / "run", tmp_path / "out", -1)
    assert ended.returncode == 0, ended.stderr
    assert "Undeclared" not in ended.stderr
    assert same(tmp_path / "out.end", tmp_path / "whole-out.end")
    assert goes_on(tmp_path / "run-2", tmp_path / "run") == 5
    assert severities(tmp_path / "run-2") == {"info"}


def attempt(path: Path, begin: Any = None, *, fails: bool = False, **options: Any) -> prover.Following:
    """Trains four steps, from a saved state if one is given; the whole state is asked for after the second."""
    with prover.follow(path, seed=1, resume=True, **options) as run:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if begin is not None:
            begin(model)
        for number, (x, y) in enumerate(torch.utils.data.DataLoader(data(), batch_size=8)):
            loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 1:
                torch.save(model.state_dict(), path.with_suffix(".pt"))
            if fails and number == 3:
                raise RuntimeError("it failed")
    return run


def failed(path: Path) -> None:
    with pytest.raises(RuntimeError, match="it failed"):
        attempt(path, fails=True)


def test_an_exception_may_be_followed_by_another_attempt(tmp_path: Path) -> None:
    """From the weights only, and from nothing at all."""
    failed(tmp_path / "run")
    again = attempt(tmp_path / "run", lambda model: model.load_state_dict(torch.load(tmp_path / "run.pt")))
    assert again.path == tmp_path / "run-2"
    assert again.parent is not None
    assert goes_on(again.path, tmp_path / "run") == 3
    failed(tmp_path / "other")
    afresh = attempt(tmp_path / "other")
    assert afresh.parent is None
    assert declared(Transcript.open(afresh.path)) is None


@pytest.mark.finding("transcript.origin.undeclared")
def test_weights_of_no_attempt_name_no_parent(tmp_path: Path) -> None:
    """They are said while recording, and remain without an origin."""

    def foreign(model: Any) -> None:
        model.load_state_dict(torch.load(tmp_path / "run.pt"))
        with torch.no_grad():
            model[0].weight.copy_(torch.from_numpy(ROWS[:8] + 1))

    failed(tmp_path / "run")
    with pytest.warns(UndeclaredInputWarning, match="are no state of a whole step"):
        run = attempt(tmp_path / "run", foreign)
    transcript = Transcript.open(run.path)
    assert declared(transcript) is None
    assert entered(transcript, bytes(32))


def test_a_state_that_the_records_do_not_have_is_no_parent(tmp_path: Path) -> None:
    """Tables beside a transcript are believed only as far as its records say the same."""
    failed(tmp_path / "run")
    for table in (tmp_path / "run.resume").glob("*.cbor"):
        table.rename(table.with_name("00000002.cbor"))
    content = (tmp_path / "run.resume" / "00000002.cbor").read_bytes()
    (tmp_path / "run.resume" / "00000002.cbor").write_bytes(content.replace(b"\x83\x03", b"\x83\x02", 1))
    with pytest.warns(UndeclaredInputWarning, match="are no state of a whole step"):
        run = attempt(tmp_path / "run", lambda model: model.load_state_dict(torch.load(tmp_path / "run.pt")))
    assert run.parent is None


def test_what_cannot_be_resumed_is_said(tmp_path: Path) -> None:
    attempt(tmp_path / "run")
    with pytest.raises(UsageError, match="nothing to resume"):
        attempt(tmp_path / "run")
    commitment = DataCommitment.over(({"0": x, "1": y} for x, y in data()), range(32))
    with pytest.raises(UsageError, match="data commitment"):
        attempt(tmp_path / "committed", data=commitment)
