"""How well two tests without a replay tell honest segments from forged ones: memorisation, and continuity of weights.

`python -m benchmarks.bench_memorisation [--seeds 6]` trains small models on this machine, without a Recorder, and keeps
their weights after every segment: a byte-level GPT-2 on the sources of Python's library, and a convolutional net on
scikit-learn's digits, each over fresh records in every step. Then, for every segment but the last ones:

- memorisation: the score of `verifier.report.memorisation` for the segment's own batches (honest), and for batches of
which
  none, a half or three quarters were really trained on, the rest being records that no step ever saw (forged);
- continuity: the score of `verifier.model.weight_change` for every segment of a run (honest), and for the segment in
which a
  run was glued to another one of the same kind: with another start, or with the same start and other data (forged).

Written down are the ROC curves, their areas, and the share of forgeries found where 1 and 5 in 100 honest segments
score as high. Results go to benchmarks/results/memorisation.json and the plot to docs/figures/memorisation.svg.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from torch import Tensor, nn

from benchmarks import machine
from prover.recipes.digits import Digits
from prover.recipes.gpt2 import Gpt2
from prover.recipes.recipe import Recipe
from verifier.model.weight_change import scores
from verifier.report.memorisation import BATCHES, compare
from weighbridge.transcript.data import permutation

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "memorisation.svg"
SHARES = (0.0, 0.5, 0.75)
"""Of a forged segment's batches, how many were really trained on."""
RATES = (0.01, 0.05)
State = dict[str, Tensor]


@dataclass(frozen=True)
class Subject:
    """One kind of training.

    Attributes:
        recipe: What is trained.
        segments: How many segments.
        steps: Steps in a segment.
    """

    recipe: Recipe
    segments: int
    steps: int


SUBJECTS = {
    "gpt2 on Python's sources": Subject(Gpt2(layers=2, width=64, heads=2, batch_size=8, dropout=0.0), 24, 16),
    "convolutional net on digits": Subject(Digits(width=8, batch_size=8), 16, 10),
}


@dataclass
class Run:
    """What is kept of a training: the weights before and after each segment, and the records that each step used."""

    model: nn.Module
    states: list[State] = field(default_factory=list)
    used: list[list[int]] = field(default_factory=list)
    unused: list[int] = field(default_factory=list)


def train(subject: Subject, seed: int, start: int) -> Run:
    """Trains once over fresh records; `start` seeds the weights and `seed` the order."""
    recipe, size = subject.recipe, subject.recipe.batch_size
    order = permutation(seed, 0, recipe.count()).tolist()
    torch.manual_seed(start)
    training = recipe.build()
    run = Run(training.model)
    for segment in range(subject.segments):
        run.states.append(state_of(training.model))
        for step in range(segment * subject.steps, (segment + 1) * subject.steps):
            run.used.append(order[step * size : (step + 1) * size])
            recipe.update(training, recipe.batch(run.used[-1]))
            training.schedule.step()
    run.states.append(state_of(training.model))
    run.unused = order[len(run.used) * size :]
    if len(run.unused) < 2 * BATCHES * size:
        raise RuntimeError(f"{recipe.name} has too few records for {subject.segments} segments; train on fewer")
    return run


def state_of(model: nn.Module) -> State:
    """A copy of the model's state."""
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


def falls(subject: Subject, run: Run, segment: int, batches: Sequence[Sequence[int]]) -> list[float]:
    """How far the loss of each batch fell over a segment, evaluated as the model trains."""
    found = []
    model = copy.deepcopy(run.model)
    for ids in batches:
        values = []
        for state in run.states[segment : segment + 2]:
            model.load_state_dict(state)
            with torch.no_grad():
                values.append(loss_of(model, subject.recipe.batch(ids)))
        found.append(values[0] - values[1])
    return found


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> float:
    """The loss that the recipes train on."""
    if "input_ids" in batch:
        return float(model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss)
    return float(nn.functional.cross_entropy(model(batch["image"]), batch["label"]))


def memorisation(subject: Subject, run: Run, rng: np.random.Generator) -> dict[str, list[float]]:
    """The scores of every segment that has enough after it, with its own batches and with forged ones."""
    size = subject.recipe.batch_size
    out: dict[str, list[float]] = {"honest": [], **{str(s): [] for s in SHARES}}
    for segment in range(subject.segments):
        end = (segment + 1) * subject.steps
        later = run.used[end : end + BATCHES]
        if len(later) < BATCHES:
            break
        own = run.used[end - BATCHES : end]
        control = falls(subject, run, segment, later)
        claims = {"honest": own}
        for share in SHARES:
            ids = rng.permutation(run.unused)[: BATCHES * size].reshape(BATCHES, size).tolist()
            kept = round(share * BATCHES)
            claims[str(share)] = [*own[BATCHES - kept :], *ids[kept:]] if kept else ids
        for name, batches in claims.items():
            auc, _ = compare(falls(subject, run, segment, batches), control)
            out[name].append(1 - auc)
    return out


def change(before: State, after: State) -> float:
    """The relative change of all floating-point weights."""
    moved = size = 0.0
    for name, a in before.items():
        if a.is_floating_point() and "running" not in name:
            b = after[name]
            moved += float((a.double() - b.double()).norm()) ** 2
            size += max(float(a.double().norm()), float(b.double().norm())) ** 2
    return math.sqrt(moved / size)


def continuity(subject: Subject, run: Run, others: dict[str, Run]) -> dict[str, list[float]]:
    """The scores of every segment of a run, and of the segment in which it was glued to another one."""
    own = [math.log(change(a, b)) for a, b in pairwise(run.states)]
    out = {"honest": list(scores(own, range(len(own))).values())}
    for name, other in others.items():
        out[name] = []
        rest = [math.log(change(a, b)) for a, b in pairwise(other.states)]
        for seam in range(2, subject.segments - 2):
            glued = [*own[:seam], math.log(change(run.states[seam], other.states[seam + 1])), *rest[seam + 1 :]]
            out[name].append(scores(glued, range(len(glued)))[seam])
    return out


def roc(honest: Sequence[float], forged: Sequence[float]) -> dict[str, Any]:
    """The curve (shares of honest and of forged segments that score at least so much), its area, and two points."""
    h, f = np.sort(np.asarray(honest)), np.asarray(forged)
    edges = np.unique(np.concatenate([h, f]))[::-1]
    points = [(0.0, 0.0), *((float((h >= e).mean()), float((f >= e).mean())) for e in edges)]
    area = float((f[:, None] > h[None]).mean() + 0.5 * (f[:, None] == h[None]).mean())
    found = {f"found at {rate}": max(t for false, t in points if false <= rate) for rate in RATES}
    thin = points[:: max(1, len(points) // 60)]
    return {"area": area, **found, "honest": len(h), "forged": len(f), "curve": [*thin, (1.0, 1.0)]}


def measure(seeds: int) -> dict[str, Any]:
    """Trains everything and returns the curves."""
    out: dict[str, Any] = {}
    for name, subject in SUBJECTS.items():
        remembered: dict[str, list[float]] = {}
        moved: dict[str, list[float]] = {}
        for seed in range(seeds):
            run = train(subject, seed, start=seed)
            others = {
                "another start": train(subject, 1000 + seed, start=1000 + seed),
                "the same start, other data": train(subject, 2000 + seed, start=seed),
            }
            for kind, values in memorisation(subject, run, np.random.default_rng(seed)).items():
                remembered.setdefault(kind, []).extend(values)
            for kind, values in continuity(subject, run, others).items():
                moved.setdefault(kind, []).extend(values)
            print(f"{name}: seed {seed} of {seeds}", flush=True)
        labels = {"0.0": "other data", "0.5": "half other data", "0.75": "a quarter other data"}
        out[name] = {
            "segments": subject.segments,
            "steps": subject.steps,
            "batch": subject.recipe.batch_size,
            "memorisation": {labels[k]: roc(remembered["honest"], v) for k, v in remembered.items() if k != "honest"},
            "continuity": {k: roc(moved["honest"], v) for k, v in moved.items() if k != "honest"},
        }
    return out


def plot(subjects: dict[str, Any]) -> None:
    """Draws the curves: a row for each subject, a column for each test."""
    matplotlib.rcParams.update({"svg.hashsalt": "memorisation", "font.size": 9})
    figure = Figure(figsize=(8, 3.4 * len(subjects)), layout="constrained")
    FigureCanvasSVG(figure)
    grid = figure.subplots(len(subjects), 2, squeeze=False)
    for row, (name, subject) in zip(grid, subjects.items(), strict=True):
        for axes, test in zip(row, ("memorisation", "continuity"), strict=True):
            for label, curve in subject[test].items():
                x, y = zip(*curve["curve"], strict=True)
                axes.plot(x, y, label=f"{label} ({curve['area']:.2f})")
            axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle=":")
            axes.set(title=f"{test}: {name}", xlabel="honest segments", ylabel="forged segments")
            axes.legend(frameon=False, loc="lower right")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, format="svg", metadata={"Date": None, "Creator": None})


def main() -> None:
    """Measures, writes the result, draws the plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=6, help="trainings of each kind")
    options = parser.parse_args()
    subjects = measure(options.seeds)
    machine.save("memorisation", {**machine.about(), "seeds": options.seeds, "subjects": subjects})
    plot(subjects)


if __name__ == "__main__":
    main()
