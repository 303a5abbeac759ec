"""Recordings whose state is so large that checkpoints are written beside the training."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from prover import Recorder
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import checkpoint_digest


def test_each_checkpoint_is_the_state_of_its_step_whatever_the_next_step_does(tmp_path: Path) -> None:
    """The next step changes the weights while the checkpoint is written; frozen ones keep their digest."""
    x = torch.ones(2, 1024)
    with Recorder(tmp_path / "run", seed=1, checkpoint_every=2) as recorder:
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(1024, 1100, bias=False), nn.Linear(1100, 1))
            model[1].requires_grad_(False)
            optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        for _ in range(3):
            with recorder.step(x):
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    transcript = Transcript.open(tmp_path / "run")
    assert transcript.checkpoint_steps == [1, 3]
    states = [transcript.step(number).state for number in range(transcript.steps)]
    assert len(set(states)) == len(states)
    for step in transcript.checkpoint_steps:
        assert checkpoint_digest(transcript.checkpoint(step)) == states[step - 1]
