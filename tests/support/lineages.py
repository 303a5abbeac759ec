"""Runs that follow from each other, and what is found about where they began; nothing is confined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from support.recordings import replay_here
from torch import Tensor, nn

from prover import Recorder
from verifier.checks import parent_runs
from verifier.model import lineage
from verifier.model.facts import TranscriptFacts
from verifier.model.lineage import Lineage
from weighbridge.core.errors import Finding, TranscriptError, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult, parse
from weighbridge.execution.transcript_facts import OpenedTranscript, open_confined
from weighbridge.transcript.parentage import Parent

State = dict[str, Tensor]


def net() -> nn.Sequential:
    """A net of 107 weights, and a buffer."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model.register_buffer("position_ids", torch.arange(12))  # every model of this kind has the same one
    return model


def record(
    path: Path, *, begin: State | None = None, load: State | None = None, parent: Parent | None = None, seed: int = 1,
    steps: int = 5, make: Callable[[], nn.Module] = net, last: Callable[[nn.Module], None] = lambda _: None,
    **options: Any,
) -> State:  # fmt: skip
    """Trains for some steps and returns what came out: from a seed, on a model that exists, or on one that is loaded.

    Args:
        path: The transcript.
        begin: Weights of a model that exists before the recording.
        load: Weights that the recorded initialisation loads.
        parent: As for the Recorder.
        seed: Of the run.
        steps: How many.
        make: Makes the model.
        last: What is done with the model at the end of the last step.
        options: More of the Recorder's.
    """
    with Recorder(path, seed=seed, parent=parent, **{"checkpoint_every": 2, **options}) as recorder:
        if begin is None:
            with recorder.initialisation():
                model = make()
                if load is not None:
                    model.load_state_dict(load)
        else:
            model = make()
            model.load_state_dict(begin)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        recorder.attach(model, optimizer)
        for step in range(1, steps + 1):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * seed + step - 1))
            with recorder.step({"x": x}):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == steps:
                    last(model)
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


def replay_to(transcript: OpenedTranscript, step: int, salt: bytes) -> ReplayResult | WeighbridgeError:
    """Replays to a state in this process."""
    try:
        return parse({"result": replay_here(transcript.path, stop=(step, 0), salt=salt)})
    except WeighbridgeError as error:
        return error


def replay_steps(transcript: OpenedTranscript, steps: tuple[int, int]) -> ReplayResult | WeighbridgeError:
    """Replays steps in this process."""
    try:
        return parse({"result": replay_here(transcript.path, steps=steps)})
    except WeighbridgeError as error:
        return error


def trace(*runs: Path, known: tuple[Path, ...] = ()) -> dict[str, Lineage]:
    """The lineages of some runs by name; a Prover also has the `known` ones."""
    opened = [open_confined(run) for run in runs]
    there = {t.digest: t for t in [*opened, *map(open_confined, known)]}

    def fetch(_: TranscriptFacts, identifier: str) -> TranscriptFacts:
        found = there.get(identifier) or TranscriptError("there is none", code="transcript.unknown")
        return TranscriptFacts(id=identifier, opened=found)

    lines = lineage.trace([TranscriptFacts(id=t.digest, opened=t) for t in opened], fetch, replay_to, replay_steps)
    return {there[line.id].path.name: line for line in lines}


def findings(*runs: Path, known: tuple[Path, ...] = ()) -> list[Finding]:
    """What is found about where some runs began."""
    return [found for line in trace(*runs, known=known).values() for found in parent_runs.check(line)]
