"""Training jobs as processes of their own: a recipe on a chip, declared or not, honest or not.

`python -m weighbridge.cli.demo.job gpt2 --socket S --out RUN --steps 20` prints one JSON object a step. Recipes may not
know the firmware; this is where shim and Recorder meet.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, get_args

import torch.distributed as dist
from torch import nn

from firmware_sim.shim import Shim
from prover import Job, Recorder
from prover.recipes.digits import Digits
from prover.recipes.gpt2 import Gpt2
from prover.recipes.gpt2_fsdp import sharded_gpt2, shards
from prover.recipes.recipe import Recipe, commit, train
from weighbridge.cli.demo.cheat import CheatingRecorder, other_records
from weighbridge.core.errors import WeighbridgeError
from weighbridge.transcript.data import DataCommitment

Mode = Literal["honest", "hidden", "altered"]


def _sharded(device: str) -> Recipe:
    return sharded_gpt2(layers=2, width=64, context=32, records=2048, device=device)


RECIPES: dict[str, Callable[..., Recipe]] = {"gpt2": Gpt2, "digits": Digits, "sharded": _sharded}


def _recorder(
    recipe: Recipe, options: argparse.Namespace, chip: Shim, data: DataCommitment | None
) -> Recorder | nullcontext[None]:
    """Returns the Recorder of a job, or nothing for a hidden one."""
    if options.mode == "hidden":
        return nullcontext()
    arguments: dict[str, Any] = {
        "seed": options.seed,
        "chip": chip,
        "data": data,
        "checkpoint_every": options.checkpoint_every,
        "formulas": recipe.formulas(),
        "metadata": {"recipe": recipe.name, "steps": options.steps},
        "job": Job.from_environment() if options.ranks > 1 else None,
    }
    if options.mode == "honest":
        return Recorder(options.out, **arguments)
    recorder = CheatingRecorder(options.out, **arguments)
    recorder.substitute = other_records(recipe)
    return recorder


def _force_at(model: nn.Module, chip: Shim, steps: list[int]) -> None:
    """Has the chip take a snapshot in the middle of the given steps, between forward and backward."""
    done = 0

    def after_forward(*_: object) -> None:
        nonlocal done
        done += 1
        if done in steps:
            chip.request_snapshot()

    model.register_forward_hook(after_forward)


@contextmanager
def _process_group(options: argparse.Namespace) -> Iterator[None]:
    """Meets the other ranks of a job, if there are any."""
    if options.ranks == 1:
        yield
        return
    dist.init_process_group(
        "gloo", init_method=options.meeting.resolve().as_uri(), rank=options.rank, world_size=options.ranks
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def run(options: argparse.Namespace) -> None:
    """Runs one job, or one rank of it."""
    recipe = RECIPES[options.recipe](device=options.device)

    def report(step: int, loss: float) -> None:
        print(json.dumps({"step": step, "steps": options.steps, "loss": loss}), flush=True)

    # Committing to the data is the host's work, done before the job has the chip.
    data = None if options.mode == "hidden" else commit(recipe, seed=options.seed, steps=options.steps)
    with Shim.connect(options.socket) as chip, _recorder(recipe, options, chip, data) as recorder:

        def on_model(model: nn.Module) -> None:
            chip.declare_weights(shards(model))
            _force_at(model, chip, options.snapshot_in)

        train(recipe, recorder, steps=options.steps, seed=options.seed, on_model=on_model, on_step=report)


def main() -> None:
    """Parses the command line; an error of the user's is one line and exit code 2."""
    parser = argparse.ArgumentParser(description="Train on a chip.")
    parser.add_argument("recipe", choices=sorted(RECIPES))
    parser.add_argument("--mode", choices=get_args(Mode), default="honest")
    parser.add_argument("--socket", type=Path, required=True, help="local socket of the chip")
    parser.add_argument("--out", type=Path, help="transcript directory; a hidden job has none")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checkpoint-every", type=int, default=5)
    parser.add_argument("--snapshot-in", type=int, nargs="*", default=[], help="steps in which to force a snapshot")
    parser.add_argument("--ranks", type=int, default=1, help="processes that train together")
    parser.add_argument("--rank", type=int, default=0, help="which of them this is")
    parser.add_argument("--meeting", type=Path, help="file through which they find each other; must not exist")
    options = parser.parse_args()
    if (options.out is None) != (options.mode == "hidden"):
        parser.error("--out is for declared jobs, and needed there")
    warnings.filterwarnings("ignore", message="TF32 acceleration")
    try:
        with _process_group(options):
            run(options)
    except WeighbridgeError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
