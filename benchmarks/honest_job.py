"""An honest training on a chip, which may die at some moment: `python -m benchmarks.honest_job RUN SOCKET [OPTIONS]`.

`--die` takes a number of seconds, or `signed`: at the worst moment of all, when the chip has signed a snapshot in the
middle of a step and the Recorder has not noted it yet. Without it the job trains to the end, from wherever an earlier
start came to. Its last line says how many steps of this start were recorded one by one, and how many as programs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from benchmarks import models
from benchmarks.models import Batch, Step
from firmware_sim import Shim
from prover import Recorder, formulas
from weighbridge.transcript.log_kinds import KINDS
from weighbridge.transcript.parentage import Parent
from weighbridge.transcript.state import read_checkpoint

SEED = 1
EVERY = 10
"""Steps between checkpoints."""


class Doomed(Shim):
    """A shim whose process dies once a snapshot in the middle of a step is signed."""

    def safepoint(self, step: int, op: int, running: bytes, head: bytes, flush: Callable[[], None]) -> int | None:
        """See `Shim.safepoint`."""
        index = super().safepoint(step, op, running, head, flush)
        if index is not None and op > 0:
            _die()
        return index


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def tiny() -> Step:
    """Two layers, which a kill finds at another place each time."""

    def batch_of(update: int) -> Batch:
        source = torch.Generator().manual_seed(update)
        return {"x": torch.randn(16, 32, generator=source), "y": torch.randint(0, 8, (16,), generator=source)}

    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Step(model, optimizer, batch_of, lambda b: nn.functional.cross_entropy(model(b["x"]), b["y"]))


def named(name: str) -> Callable[[], Step]:
    """Returns the maker of a model: `tiny`, or one of `benchmarks.models`."""
    return tiny if name == "tiny" else models.named(name)


def described(optimizer: torch.optim.Optimizer) -> Mapping[str, str]:
    """Returns the formulas of what changes from step to step: nothing but the optimizer's numbers."""
    options = optimizer.defaults
    rate = formulas.constant(options["lr"])
    if isinstance(optimizer, torch.optim.AdamW):
        return rate | formulas.adamw(betas=options["betas"], weight_decay=options["weight_decay"])
    if isinstance(optimizer, torch.optim.Adam):
        return rate | formulas.adam(betas=options["betas"])
    return rate | formulas.sgd()


def made(model: str, precision: str) -> Step:
    """Builds a model, in `float32`, in `autocast` to bfloat16, or in `bfloat16`."""
    step = named(model)()
    if precision == "autocast":
        step.autocast = torch.bfloat16
    return step.to(torch.bfloat16) if precision == "bfloat16" else step


def ask(chip: Shim, step: Step, place: str) -> list[RemovableHandle]:
    """Asks for an interrupt at some place of the update that comes; returns what takes the hooks away again.

    Args:
        chip: Whom to ask.
        step: The training.
        place: `begin`, `forward:0.5`, `backward:0.5` (how far in the lists of modules and parameters), or `update`.
    """
    kind, _, far = place.partition(":")

    def now(*_: object) -> None:
        chip.request_snapshot()

    if kind == "begin":
        now()
        return []
    if kind == "update":
        return [step.optimizer.register_step_pre_hook(now)]
    modules, parameters = list(step.model.modules()), list(step.model.parameters())
    if kind == "forward":
        return [modules[int(float(far) * len(modules))].register_forward_hook(now)]
    return [parameters[int(float(far) * len(parameters))].register_hook(now)]


def train(options: argparse.Namespace) -> None:
    """Trains until it dies or is done; one that waits for a signed snapshot goes on until one comes."""
    kind = Doomed if options.die == "signed" else Shim
    # Programs need what an optimizer computes from its counters, which the Recorder declares by itself.
    declared = None if options.compile else described(made(options.model, "float32").optimizer)
    base = None if options.base is None else read_checkpoint(max((options.base / "checkpoints").iterdir()))
    parent = None if base is None else Parent.of(options.base, base.step)
    weights = {} if base is None else {view.name: view.tensor(base.storages) for view in base.views}
    with (
        kind.connect(options.socket) as chip,
        Recorder(
            options.run, seed=SEED, chip=chip, checkpoint_every=EVERY, resume=True, policy=options.policy,
            formulas=declared, parent=parent, logs=options.logs, device="cpu",
        ) as recorder,
    ):  # fmt: skip
        with recorder.initialisation() if base is None else nullcontext():
            step = made(options.model, options.precision)
        if base is not None:
            step.model.load_state_dict({name: weights[f"model.{name}"] for name in step.model.state_dict()})
            base = None
            weights.clear()  # or else the chip sees another model beside this one
        recorder.attach(*step.attached)
        if options.die not in ("", "signed"):
            threading.Timer(float(options.die), _die).start()
        program = recorder.compile(step.update) if options.compile else None
        first = update = recorder.updates
        last = max(options.steps, update + 5)
        while update < last or options.die:
            batch = step.batch(update)
            asked = update == options.ask
            if program is None:
                with recorder.step(batch):
                    hooks = ask(chip, step, options.place) if asked else []
                    step.update(batch)
            else:
                hooks = ask(chip, step, options.place) if asked else []
                program(batch)
            for hook in hooks:
                hook.remove()
            update += 1
    programs = 0 if program is None else program.compiled
    print(json.dumps({"one by one": update - first - programs, "as programs": programs}), flush=True)


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("socket")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--precision", choices=("float32", "autocast", "bfloat16"), default="float32")
    parser.add_argument("--policy", choices=("strict", "calibrated"), default="strict")
    parser.add_argument("--logs", choices=KINDS, default="full")
    parser.add_argument("--compile", action="store_true", help="record steps as programs once they are known")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--base", type=Path, help="run whose end this one begins from, as its declared parent")
    parser.add_argument("--ask", type=int, help="update at which the chip is asked for an interrupt, beside its own")
    parser.add_argument("--place", default="begin", help="where in that update; see `ask`")
    parser.add_argument("--die", default="", help="seconds, or `signed`")
    warnings.simplefilter("ignore")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
