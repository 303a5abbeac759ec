"""A training for benchmarks of inspections: `python -m benchmarks.inspected_job JSON`.

The JSON has `model` (of `benchmarks.models`), `seed`, `steps`, and for one that is recorded on a chip `run`, `socket`
and `checkpoint_every`. With `snapshots` the chip is asked for an interrupt in the forward pass of so many steps, chosen
at random; without, it interrupts when it likes. The last line says how many steps were made, what one took (seconds
of the processor and on the wall, without the first three, in which code is compiled), and how long the chip was in use.
"""

from __future__ import annotations

import json
import random
import sys
import time
import warnings
from contextlib import ExitStack, nullcontext
from typing import Any

import torch

from benchmarks import models
from firmware_sim import Shim
from prover import Recorder, formulas

_MOST = 1000
"""Steps of a training: each seed has batches of its own."""
_WARM = 3
_FORMULAS = {
    "gpt2": formulas.constant(1e-3) | formulas.adamw(),
    "resnet": formulas.constant(1e-2) | formulas.sgd(),
}


def train(
    *,
    model: str,
    seed: int,
    steps: int,
    run: str = "",
    socket: str = "",
    checkpoint_every: int = 10,
    snapshots: int = 0,
) -> dict[str, Any]:
    """Trains, and returns what came of it."""
    started = time.perf_counter()
    with ExitStack() as stack:
        chip, recorder = None, None
        if run:
            chip = stack.enter_context(Shim.connect(socket))
            recorder = stack.enter_context(
                Recorder(run, seed=seed, chip=chip, checkpoint_every=checkpoint_every, formulas=_FORMULAS[model])
            )
        with nullcontext() if recorder is None else recorder.initialisation():
            subject = models.named(model)()
        if recorder is not None:
            recorder.attach(*subject.attached)
        wanted = set(random.Random(seed).sample(range(2, steps + 1), snapshots))
        subject.model.register_forward_hook(lambda *_: chip.request_snapshot() if chip and step in wanted else None)
        begun: tuple[float, float] = (0.0, 0.0)
        step: int = 0
        for step in range(1, steps + 1):
            if step == _WARM + 1:
                begun = time.process_time(), time.perf_counter()
            batch = subject.batch(seed * _MOST + step)
            with nullcontext() if recorder is None else recorder.step(batch):
                subject.update(batch)
        ended = time.process_time(), time.perf_counter()
    each = [(end - begin) / (steps - _WARM) for begin, end in zip(begun, ended, strict=True)]
    return {
        "steps": steps,
        "step_cpu_s": round(each[0], 6),
        "step_wall_s": round(each[1], 6),
        "wall_s": round(time.perf_counter() - started, 3),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(json.dumps(train(**json.loads(sys.argv[1]))))
