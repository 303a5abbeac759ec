"""A Prover that cheats, for the demo and the tests only: its transcript says one data set, its training uses another.

It does what a dishonest operator with full control of the training process could do: after the Recorder has stored and
committed to the declared batch, it changes the bytes of the very same tensors through memory that the Recorder does not
watch, and puts the declared bytes back before the Recorder looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from prover import Recorder
from prover.recipes.recipe import Recipe


class CheatingRecorder(Recorder):
    """A Recorder whose steps run on other records than those they declare."""

    substitute: Callable[[Sequence[int]], Mapping[str, Tensor]]
    """Given the declared record ids, returns the batch to train on instead, of the same shapes."""

    @contextmanager
    def step(self, batch: Any = None, *, records: Sequence[int] | None = None) -> Iterator[None]:
        """Records a step on `batch` while the training inside sees `substitute(records)`."""
        # As arrays before the step begins: inside, every tensor that is touched comes onto the tape.
        secret = {name: tensor.numpy() for name, tensor in self.substitute(records or []).items()}
        views = {name: tensor.numpy() for name, tensor in batch.items()}  # the same memory, not a copy
        declared = {name: view.copy() for name, view in views.items()}
        with super().step(batch, records=records):
            for name, view in views.items():
                view[...] = secret[name]
            yield
            for name, view in views.items():
                view[...] = declared[name]


def other_records(recipe: Recipe) -> Callable[[Sequence[int]], Mapping[str, Tensor]]:
    """Returns a substitution that trains on the data set's first records, over and over, whatever was declared."""
    return lambda ids: recipe.batch(range(len(ids)))
