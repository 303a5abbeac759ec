"""An honest training on a chip that dies at some moment: `python -m benchmarks.chip_crash_job RUN SOCKET [WHEN]`.

WHEN is a number of seconds, or `signed`: at the worst moment of all, when the chip has signed a snapshot in the middle
of a step and the Recorder has not noted it yet. Without WHEN it trains to the end, from wherever an earlier start came
to.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable

import torch
from torch import nn

from firmware_sim import Shim
from prover import Recorder, formulas

STEPS = 40


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


def batch_of(update: int) -> dict[str, torch.Tensor]:
    """Returns the batch of an update, the same in every start."""
    source = torch.Generator().manual_seed(update)
    return {"x": torch.randn(16, 32, generator=source), "y": torch.randint(0, 8, (16,), generator=source)}


def train(run: str, socket: str, when: str) -> None:
    """Trains until it dies or is done; `signed` goes on until a snapshot comes."""
    kind = Doomed if when == "signed" else Shim
    described = formulas.constant(1e-2) | formulas.adamw()
    with (
        kind.connect(socket) as chip,
        Recorder(run, seed=1, chip=chip, checkpoint_every=10, resume=True, formulas=described) as recorder,
    ):
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        recorder.attach(model, optimizer)
        if when not in ("", "signed"):
            threading.Timer(float(when), _die).start()
        update = recorder.updates
        last = max(STEPS, update + 5)
        while update < last or when:
            batch = batch_of(update)
            with recorder.step(batch):
                nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
                optimizer.step()
                optimizer.zero_grad()
            update += 1


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    train(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "")
