"""The command line that every recipe shares when it runs as a program: train under a Recorder, without a chip."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from prover import Recorder
from prover.recipes.recipe import Recipe, commit, train
from weighbridge.attest.manifest import load_or_create_key
from weighbridge.core.errors import WeighbridgeError


def main(recipe: Recipe) -> None:
    """Parses the command line, trains `recipe` and leaves a transcript; exits with 2 on an error of the user's."""
    parser = argparse.ArgumentParser(description=f"Train {recipe.name} and leave a transcript.")
    parser.add_argument("--out", type=Path, required=True, help="directory of the transcript; must not exist yet")
    parser.add_argument("--steps", type=int, default=20, help="updates (default: 20)")
    parser.add_argument("--seed", type=int, default=7, help="seed of everything random (default: 7)")
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps between checkpoints (default: 10)")
    parser.add_argument("--data-commitment", action="store_true", help="commit to the data and its order first")
    parser.add_argument("--key", type=Path, help="key that signs, made if missing (default: one for this run only)")
    options = parser.parse_args()

    def report(number: int, loss: float) -> None:
        print(f"step {number} of {options.steps}  loss {loss:.4f}", flush=True)

    try:
        data = commit(recipe, seed=options.seed, steps=options.steps) if options.data_commitment else None
        with Recorder(
            options.out,
            seed=options.seed,
            data=data,
            key=None if options.key is None else load_or_create_key(options.key),
            checkpoint_every=options.checkpoint_every,
            formulas=recipe.formulas(),
        ) as recorder:
            train(recipe, recorder, steps=options.steps, seed=options.seed, on_step=report)
    except WeighbridgeError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
