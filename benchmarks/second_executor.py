"""The demonstration's trainings, recorded with PyTorch and replayed by the second Executor, which computes with JAX.

`python -m benchmarks.second_executor` writes `results/second_executor.json`: roundings, how many of them logs have,
how many would have come out otherwise with JAX, and mismatches, which there must be none of.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from benchmarks import machine
from prover import Recorder
from prover.recipes.digits import Digits
from prover.recipes.gpt2 import Gpt2
from prover.recipes.recipe import Recipe, train
from weighbridge.execution.second_replay import second_replay

UPDATES = {"gpt2": 3, "digits": 10}


def measured(recipe: Recipe, path: Path) -> dict[str, Any]:
    """Records a few updates of a recipe and replays them."""
    updates = UPDATES[recipe.name]
    with Recorder(path, seed=7, checkpoint_every=10, formulas=recipe.formulas()) as recorder:
        train(recipe, recorder, steps=updates, seed=7)
    began = time.monotonic()
    result = second_replay(path)
    return {
        "updates": updates, "verdict": result.verdict, "rounded": result.rounded, "contested": result.contested,
        "followed": result.followed, "mismatches": int(result.verdict == "differs"), "lacks": result.lacks,
        "difference": result.first_difference, "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def main() -> None:
    """Writes the result; ends with 1 unless all replays match."""
    recipes: list[Recipe] = [Gpt2(), Digits()]
    with tempfile.TemporaryDirectory() as directory:
        found = {recipe.name: measured(recipe, Path(directory, recipe.name)) for recipe in recipes}
    result = {"machine": machine.about(), "jax": jax.__version__, "runs": found}
    (machine.RESULTS / "second_executor.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    sys.exit(any(run["verdict"] != "match" for run in found.values()))


if __name__ == "__main__":
    main()
