"""A service that trains fewer steps than it was paid for, for the demo and the tests only.

`python -m weighbridge.cli.demo.lazy --out RUN --steps 8 --claimed 12 --seed 7 --key K` trains 8 steps, which lie in
`RUN-trained`, and writes a transcript of 12. The others have the records of the batches that were due, the checksums of
the last step that was run, and a state that stays what it was. All digests are right: only who executes them finds it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from prover import Recorder
from prover.recipes.digits import Digits
from prover.recipes.recipe import Recipe, commit, train
from weighbridge.attest.manifest import SigningKey, load_or_create_key
from weighbridge.transcript.data import flatten
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import Checkpoint
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.writer import TranscriptWriter

_MADE_ANEW = ("step", "batch", "free", "record_digests", "records", "rounding", "tape")


def pad(run: Path, out: Path, recipe: Recipe, *, steps: int, key: SigningKey) -> None:
    """Writes a transcript with more steps than were run.

    Args:
        run: What was run, with a commitment to the data of all steps.
        out: Where the transcript goes; it must not exist.
        recipe: What was trained.
        steps: Updates that it claims.
        key: Signs it.
    """
    old = Transcript.open(run)
    draft = {name: value for name, value in old.draft.items() if name not in ("format", "data", "name")}
    writer = TranscriptWriter(out, draft=draft, key=key, data=old.data)
    last = old.step(old.steps - 1)
    for number in range(old.steps):
        if number in old.checkpoint_steps:
            writer.checkpoint(old.checkpoint(number))
        _append(writer, old, old.step(number), old.batch(number))
    final = old.checkpoint(old.steps) if old.steps in old.checkpoint_steps else None
    if final is not None:
        writer.checkpoint(final)
    ids = [] if old.data is None else old.data.ids().tolist()
    for number in range(old.steps - 1, steps):
        due = ids[number * recipe.batch_size : (number + 1) * recipe.batch_size]
        _append(writer, old, last, flatten(recipe.batch(due)))
    if final is not None:
        writer.checkpoint(Checkpoint(step=steps + 1, storages=final.storages, views=final.views, rng=final.rng))
    writer.close()


def _append(writer: TranscriptWriter, old: Transcript, record: StepRecord, batch: Mapping[str, Tensor]) -> None:
    fields = {name: getattr(record, name) for name in StepRecord.__slots__ if name not in _MADE_ANEW}
    writer.append_step(
        **fields, tape=writer.put_tape(old.tape(record.tape)), rounding=old.named_log(record.step), batch=batch,
        undeclared=old.undeclared(record.step),
    )  # fmt: skip


def main() -> None:
    """Trains some steps, and claims more."""
    parser = argparse.ArgumentParser(description="Train fewer steps than the transcript says.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--claimed", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--key", type=Path, required=True)
    options = parser.parse_args()
    recipe, key = Digits(), load_or_create_key(options.key)
    trained = options.out.with_name(options.out.name + "-trained")
    data = commit(recipe, seed=options.seed, steps=options.claimed)
    recording = Recorder(
        trained, seed=options.seed, data=data, key=key, checkpoint_every=options.steps, formulas=recipe.formulas()
    )
    with recording as recorder:
        train(recipe, recorder, steps=options.steps, seed=options.seed)
    pad(trained, options.out, recipe, steps=options.claimed, key=key)


if __name__ == "__main__":
    main()
