"""Proof-of-learning with a tolerance: the verifier that published attacks beat, written anew from its description.

Jia, Yaghini, Choquette-Choo, Dullerud, Thudi, Chandrasekaran and Papernot, "Proof-of-learning: definitions and
practice" (IEEE S&P 2021): the prover keeps a checkpoint every k steps, the data of each step with their digests, and
the hyperparameters. The verifier tests that the first weights look like draws from their distribution, takes in each
epoch the q segments whose weights changed most, executes them again from their first checkpoint, and accepts if the
weights come close enough to the next one in every one of four distances. Hardware rounds differently, so that "close
enough" is a tolerance; nothing else ties a checkpoint to the one before.

Chosen as the paper has it: distances l1, l2, l-infinity and cosine, q segments an epoch, a Kolmogorov-Smirnov test of
the first weights at 1 %. Where the published code departs from the paper to its own disadvantage (digests over
abbreviated texts, a cosine that is none), the paper is followed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

Weights = Mapping[str, Tensor]
Batch = Mapping[str, Tensor]
Execute = Callable[[Weights, Sequence[Batch], float], Weights]
"""Trains from weights on batches at a learning rate; returns the weights that come out."""

INITIAL = 0.01
"""Least p-value of the first weights."""


def distances(a: Weights, b: Weights) -> dict[str, float]:
    """Returns the distances of two models by name: `l1`, `l2`, `linf`, `cos` (one minus the cosine)."""
    x, y = (torch.cat([w[name].reshape(-1) for name in sorted(w)]).double() for w in (a, b))
    apart = x - y
    angle = float(torch.dot(x, y) / (torch.linalg.vector_norm(x) * torch.linalg.vector_norm(y)).clamp_min(1e-300))
    return {
        "l1": float(apart.abs().sum()),
        "l2": float(torch.linalg.vector_norm(apart)),
        "linf": float(apart.abs().max()),
        "cos": max(0.0, 1 - angle),
    }


def digest(batch: Batch) -> bytes:
    """SHA-256 over every byte of a batch."""
    found = hashlib.sha256()
    for name in sorted(batch):
        found.update(name.encode() + bytes(batch[name].contiguous().numpy().tobytes()))
    return found.digest()


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a prover hands over.

    Attributes:
        checkpoints: Weights before the first step and after every segment.
        segments: The batches of each segment, one for each step.
        digests: Of each batch, as they were signed.
        rate: Learning rate that the prover names.
    """

    checkpoints: Sequence[Weights]
    segments: Sequence[Sequence[Batch]]
    digests: Sequence[Sequence[bytes]]
    rate: float

    @staticmethod
    def of(checkpoints: Sequence[Weights], segments: Sequence[Sequence[Batch]], rate: float) -> Proof:
        """Puts a proof together; its digests are those of its batches."""
        return Proof(
            checkpoints=checkpoints,
            segments=segments,
            digests=[[digest(batch) for batch in segment] for segment in segments],
            rate=rate,
        )


@dataclass(frozen=True, kw_only=True)
class Verifier:
    """One who accepts or refuses proofs.

    Attributes:
        execute: Executes a segment again.
        spread: By tensor, the half width of the uniform distribution that first weights come from.
        tolerance: By name, the largest distance that is accepted.
        epoch: Segments in an epoch.
        top: Segments of each epoch that are executed again (q).
    """

    execute: Execute
    spread: Mapping[str, float]
    tolerance: Mapping[str, float]
    epoch: int
    top: int

    def accepts(self, proof: Proof) -> bool:
        """Returns whether a proof is accepted."""
        return self.begins(proof) and self.names(proof) and all(map(self._close, *self._chosen(proof)))

    def begins(self, proof: Proof) -> bool:
        """Whether the first weights look like draws from their distribution."""
        first = proof.checkpoints[0]
        return all(
            float(stats.kstest(first[name].numpy().reshape(-1), stats.uniform(-half, 2 * half).cdf).pvalue) > INITIAL
            for name, half in self.spread.items()
        )

    def names(self, proof: Proof) -> bool:
        """Whether the data are those that were signed."""
        found = [[digest(batch) for batch in segment] for segment in proof.segments]
        return found == [list(segment) for segment in proof.digests]

    def _chosen(self, proof: Proof) -> tuple[list[Proof], list[int]]:
        moved = [
            distances(before, after)["l2"]
            for before, after in zip(proof.checkpoints[:-1], proof.checkpoints[1:], strict=True)
        ]
        chosen: list[int] = []
        for first in range(0, len(moved), self.epoch):
            own = np.arange(first, min(first + self.epoch, len(moved)))
            chosen += sorted(own, key=lambda place: -moved[place])[: self.top]
        return [proof] * len(chosen), chosen

    def _close(self, proof: Proof, place: int) -> bool:
        reached = self.execute(proof.checkpoints[place], proof.segments[place], proof.rate)
        apart = distances(reached, proof.checkpoints[place + 1])
        return all(apart[name] <= most for name, most in self.tolerance.items())
