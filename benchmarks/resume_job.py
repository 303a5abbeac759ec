"""A training that may be killed at any moment and started again.

`python -m benchmarks.resume_job RUN [KILL_AT [WIDTH [LOGS [WAY]]]]` has the habits that make resuming hard: a schedule,
gradients that outlive a step, an average of the weights, its own generator of random numbers, edits, tensors kept in a
list, a tensor made outside any step. With KILL_AT it kills itself at so many-th change of a file: before a file is
opened for writing, renamed or removed. With a WIDTH of 40,000 the state is so large that segments and checkpoints are
written beside the training. LOGS is the kind of rounding logs; the job is under autocast to bfloat16 for those that are
sketched, since sketches are of 16 bits. With a WAY of `compiled` steps are recorded as programs once they are known;
there are twice as many, without the generator, the average, the list and the tensor from outside.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from prover import Recorder
from weighbridge.transcript.data import DataCommitment

STEPS = 9
ROWS = 4
_CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")


def records(shift: float = 0.0) -> list[dict[str, Tensor]]:
    """The data set."""
    source = torch.Generator().manual_seed(1)
    return [
        {"x": torch.randn(8, generator=source) + shift, "y": torch.tensor(index % 3)} for index in range(STEPS * ROWS)
    ]


def order(rank: int = 0) -> list[int]:
    """Record ids in the order of use, of a rank if there are several."""
    ids: list[int] = torch.randperm(STEPS * ROWS, generator=torch.Generator().manual_seed(2 + rank)).tolist()
    return ids


def classifier(width: int) -> nn.Sequential:
    """A model with statistics and random numbers."""
    return nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.ReLU(), nn.Linear(width, 3))


def adamw(model: nn.Sequential, lr: float) -> torch.optim.Optimizer:
    """An optimizer with two groups."""
    groups: list[dict[str, Any]] = [
        {"params": model[0].parameters()}, {"params": model[4].parameters(), "weight_decay": 0.0}
    ]  # fmt: skip
    return torch.optim.AdamW(groups, lr=lr)


@dataclass(frozen=True)
class Part:
    """What a rank of a job on several ranks does besides (`benchmarks.resume_ranks`); by default there is one process.

    Attributes:
        rank: Which records it trains on.
        wrap: Makes the module that is trained of the model.
        exchange: Called with it after each backward pass.
    """

    rank: int = 0
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model
    exchange: Callable[[nn.Module], None] = lambda model: None


def batch_of(data: list[dict[str, Tensor]], chosen: list[int]) -> dict[str, Tensor]:
    """The records with these numbers."""
    return {name: torch.stack([data[i][name] for i in chosen]) for name in ("x", "y")}


def train(
    run: Path, *, steps: int = STEPS, seed: int = 7, width: int = 16, lr: float = 1e-2, shift: float = 0.0,
    fresh: bool = True, narrow: bool = False, part: Part = Part(), **options: Any,
) -> Generator[Recorder, None, None]:  # fmt: skip
    """Trains, and yields inside each step and after it, so that the caller may stop it there.

    Args:
        run: The transcript.
        steps: Steps to make.
        seed: The Recorder's.
        width: Of the hidden layer.
        lr: Learning rate.
        shift: Added to the data.
        fresh: Whether the initialisation is recorded; otherwise the model exists before.
        narrow: Whether the loss is computed under autocast to bfloat16.
        part: What a rank of a job does besides.
        **options: For the Recorder.
    """
    data, ids = records(shift), order(part.rank)
    weights = torch.tensor([1.0, 2.0, 0.5])
    noise = torch.Generator().manual_seed(3)
    committed = DataCommitment.over(records(), ids)
    options = {"checkpoint_every": 4, "resume": True, "data": committed, **options}

    def build() -> tuple[nn.Module, AveragedModel, torch.optim.Optimizer]:
        model = classifier(width)
        average = AveragedModel(model)
        return part.wrap(model), average, adamw(model, lr)

    if not fresh:
        torch.manual_seed(4)
        model, average, optimizer = build()
    with Recorder(run, seed=seed, **options) as recorder:
        if fresh:
            with recorder.initialisation():
                model, average, optimizer = build()
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        recorder.attach(model, average, optimizer, schedule)
        history = []
        for update in range(recorder.updates, steps):
            chosen = ids[ROWS * update : ROWS * (update + 1)]
            batch = batch_of(data, chosen)
            with recorder.step(batch):
                x = batch["x"] + 0.1 * torch.randn(ROWS, 8, generator=noise)
                with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
                    loss = nn.functional.cross_entropy(model(x), batch["y"], weight=weights)
                yield recorder
                loss.backward()  # type: ignore[no-untyped-call]
                part.exchange(model)
                optimizer.step()
                average.update_parameters(model)
                if update % 3 == 2:  # gradients of three steps add up
                    optimizer.zero_grad()
                history.append(loss.detach())
            schedule.step()
            yield recorder
            if update % 4 == 3:
                with recorder.edit(), torch.no_grad():
                    average(batch["x"]).sum()
                yield recorder


def train_compiled(
    run: Path, *, width: int = 16, narrow: bool = False, part: Part = Part(), **options: Any
) -> int:  # fmt: skip
    """Trains with steps that are programs once they are known; returns how many were.

    Args:
        run: The transcript.
        width: Of the hidden layer.
        narrow: Whether the loss is computed under autocast to bfloat16.
        part: What a rank of a job does besides.
        **options: For the Recorder.
    """
    data, ids = records(), [*order(part.rank), *order(part.rank)]
    committed = DataCommitment.over(records(), ids)
    with Recorder(run, seed=7, checkpoint_every=4, resume=True, data=committed, **options) as recorder:
        with recorder.initialisation():
            plain = classifier(width)
            model, optimizer = part.wrap(plain), adamw(plain, 1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * STEPS)
        recorder.attach(model, optimizer, schedule)

        def add(batch: dict[str, Tensor]) -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
                loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            loss.backward()  # type: ignore[no-untyped-call]
            part.exchange(model)
            optimizer.step()

        def clear(batch: dict[str, Tensor]) -> None:
            add(batch)
            optimizer.zero_grad()

        adding, clearing = recorder.compile(add), recorder.compile(clear)
        for update in range(recorder.updates, 2 * STEPS):
            batch = batch_of(data, ids[ROWS * update : ROWS * (update + 1)])
            step = clearing if update % 3 == 2 else adding  # gradients of three steps add up
            step(batch)
            schedule.step()
            if update % 4 == 3:
                with recorder.edit(), torch.no_grad():
                    model(batch["x"]).sum()
    return adding.compiled + clearing.compiled


def whole(run: Path, width: int, logs: str, *, compiled: bool, **options: Any) -> int:
    """Trains to the end in one of the ways; returns how many steps ran as programs."""
    options |= {"width": width, "narrow": logs == "sketch"}
    if logs != "full":
        options |= {"logs": logs, "device": "cpu"}
    if compiled:
        return train_compiled(run, **options)
    for _ in train(run, **options):
        pass
    return 0


class Changes:
    """Counts the changes of files of a run, and kills this process before a given one."""

    def __init__(self, run: str, kill_at: int) -> None:
        self.count = 0
        self._run, self._kill_at = run, kill_at
        sys.addaudithook(self._event)

    def _event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES and str(arguments[0]).startswith(self._run) and (event != "open" or _writes(arguments)):
            self.count += 1
            if self.count == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def _writes(arguments: tuple[Any, ...]) -> bool:
    return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))


def main() -> None:
    """Trains once, from wherever an earlier start came to."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    run = str(Path(sys.argv[1]).resolve())
    changes = Changes(run, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print("ready", flush=True)
    width = int(sys.argv[3]) if len(sys.argv) > 3 else 16
    logs = sys.argv[4] if len(sys.argv) > 4 else "full"
    programs = whole(Path(run), width, logs, compiled=sys.argv[5:] == ["compiled"])
    print(changes.count, programs)


if __name__ == "__main__":
    main()
