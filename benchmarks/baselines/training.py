"""Training and auditing by the published method, side by side with ours on the same models.

As a program, one of the two parties of a run: `train` writes the initial weights and the log into a directory, `audit`
follows them; both print the digests of the float32 weights after every step. Run in a process of its own under another
instruction set, the auditor stands for another machine. Weights and data travel as they would: by file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import models
from benchmarks.baselines import rounding, ternary
from benchmarks.baselines.hooks import Hooks
from benchmarks.models import Batch, Step
from weighbridge.core.errors import LogError

Tensor = torch.Tensor
Observe = Callable[[str, Tensor], None]
"""Called with the kind of module and the float64 value before it is rounded."""


class Party(Protocol):
    """What trainer and auditor have in common: they round what modules make."""

    def __call__(self, wide: Tensor, kind: str) -> Tensor:
        """Rounds one result."""


class Trainer:
    """Rounds and logs.

    Attributes:
        log: The code of every rounded tensor so far, in the order of rounding.
        elements: How many elements were rounded.
        near: How many of them were in the band.
    """

    def __init__(self, pivots: Mapping[str, float] | None = None, observe: Observe | None = None) -> None:
        """Starts an empty log.

        Args:
            pivots: Pivot of the band by kind of module, as `threshold.pivots` measures them; 0.25 where none is given.
            observe: Sees every value.
        """
        self.log = bytearray()
        self.elements = self.near = 0
        self._pivots, self._observe = pivots or {}, observe

    def __call__(self, wide: Tensor, kind: str) -> Tensor:
        """Rounds one float64 result and logs which way each element went."""
        if self._observe is not None:
            self._observe(kind, wide)
        rounded = rounding.to_float32(wide)
        pivot = self._pivots.get(kind, rounding.PIVOT)
        codes = rounding.classify(wide, rounded, pivot=pivot).reshape(-1).numpy()
        self.log += ternary.encode(codes)
        self.elements += codes.size
        self.near += int((codes != ternary.CLEAR).sum())
        return rounded


class Auditor:
    """Rounds, and follows a trainer's log where both saw a boundary near.

    Attributes:
        moved: How many roundings the log changed.
    """

    def __init__(self, log: bytes, pivots: Mapping[str, float] | None = None, observe: Observe | None = None) -> None:
        """Starts at the beginning of a trainer's log; pivots must be the trainer's."""
        self.moved = 0
        self._log, self._position = log, 0
        self._pivots, self._observe = pivots or {}, observe

    def __call__(self, wide: Tensor, kind: str) -> Tensor:
        """Rounds one float64 result as the trainer did.

        Raises:
            LogError: The log is no ternary code, or ends too early.
        """
        if self._observe is not None:
            self._observe(kind, wide)
        rounded = rounding.to_float32(wide)
        own = rounding.classify(wide, rounded, pivot=self._pivots.get(kind, rounding.PIVOT))
        end = self._position + ternary.size(wide.numel())
        theirs = ternary.decode(self._log[self._position : end], wide.numel())
        self._position = end
        rounded, moved = rounding.revise(rounded, own, theirs)
        self.moved += moved
        return rounded

    def finish(self) -> None:
        """Raises LogError if the log goes on after the last rounding."""
        if self._position != len(self._log):
            raise LogError(f"{len(self._log) - self._position} bytes of the log were not used; it is of another run")


def update(step: Step, hooks: Hooks, batch: Batch) -> None:
    """Does one update of a float64 training whose model has hooks."""
    loss = step.loss(batch)
    hooks.round_gradient_of_logits()
    step.descend(loss)


def digests(model: nn.Module) -> dict[str, str]:
    """Returns what the published method commits to after a step: SHA-256 of each weight and buffer as float32.

    Tensor by tensor, so that it can be said which differ; the first 16 hex digits of each are kept.
    """
    return {
        name: hashlib.sha256(t.float().contiguous().numpy().tobytes()).hexdigest()[:16]
        for name, t in sorted(model.state_dict().items())
    }


def run(
    name: str, party: Callable[[int], Party], *, steps: int, seed: int, start: Path, finished: Callable[[int], None]
) -> list[dict[str, str]]:
    """Trains a model of `benchmarks.models` in float64 under one party's rounding.

    Args:
        name: Of the model.
        party: Returns who rounds in a step.
        steps: How many updates.
        seed: Of initial weights, dropout and batches.
        start: File of the initial weights; written if it is not there.
        finished: Called after every step.

    Returns:
        The digests after each step.
    """
    torch.manual_seed(seed)
    step = models.named(name)().to(torch.float64)
    if start.exists():
        step.model.load_state_dict(load_file(start))
    else:
        save_file({key: t.clone() for key, t in step.model.state_dict().items()}, start)
    torch.manual_seed(seed + 1)
    states = []
    with sdpa_kernel([SDPBackend.MATH]):
        for number in range(steps):
            hooks = Hooks(step.model, party(number))
            update(step, hooks, step.batch(1000 * seed + number))
            hooks.detach()
            states.append(digests(step.model))
            finished(number)
    return states


def main() -> None:
    """Runs one party and prints digests and counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["train", "audit"])
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--pivots", default="{}", help="JSON: pivot by kind of module")
    parser.add_argument("--values", action="store_true", help="train: write every wide value; audit: compare with them")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    from benchmarks.baselines.threshold import Comparison, Values

    directory: Path = options.directory
    pivots = {str(k): float(v) for k, v in json.loads(options.pivots).items()}
    values = directory / "values.bin"
    begin, totals, widths = time.perf_counter(), {"elements": 0, "near": 0, "moved": 0, "bytes": 0}, {}
    observe: Observe | None = None
    if options.values:
        observe = Values(values) if options.role == "train" else Comparison(values)
    current: Trainer | Auditor

    def party(number: int) -> Party:
        nonlocal current
        log = directory / f"{number:06d}.log"
        current = (
            Trainer(pivots, observe=observe)
            if options.role == "train"
            else Auditor(log.read_bytes(), pivots, observe=observe)
        )
        return current

    def finished(number: int) -> None:
        if isinstance(current, Trainer):
            (directory / f"{number:06d}.log").write_bytes(current.log)
            for key, value in (("elements", current.elements), ("near", current.near), ("bytes", len(current.log))):
                totals[key] += value
        else:
            current.finish()
            totals["moved"] += current.moved

    states = run(
        options.model, party, steps=options.steps, seed=options.seed, start=directory / "start.safetensors",
        finished=finished,
    )  # fmt: skip
    if isinstance(observe, Comparison):
        widths = observe.widths
    print(json.dumps({**totals, "seconds": time.perf_counter() - begin, "states": states, "widths": widths}))


if __name__ == "__main__":
    main()
