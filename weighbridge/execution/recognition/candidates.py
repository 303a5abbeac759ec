"""What the gradients after a backward pass may be: the Verifier's own, or what ranks make of theirs together.

Which of these it is, is not claimed. The first that the numbers confirm is stated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from weighbridge.execution.recognition.acceptance import width
from weighbridge.execution.recognition.derivation import Derived
from weighbridge.execution.recognition.noise import unit

Tensor = torch.Tensor


class Candidate(Protocol):
    """Says what each leaf's gradient should be.

    Attributes:
        derived: Of this rank, for what it says of stops.
        ranks: Whose losses it is the gradient of; empty outside of jobs.
        whole: Whether it includes what was there before the backward pass.
        kind: What it has in common with candidates of which other leaves of the same backward pass may be: a replica in
            each rank, beside shards.
    """

    @property
    def kind(self) -> tuple[float, ...]:
        """See the class."""

    @property
    def derived(self) -> Derived:
        """See the class."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """See the class."""

    @property
    def whole(self) -> bool:
        """See the class."""

    def exact(self, leaf: int) -> Tensor:
        """The gradient of a leaf, given by its reference (float64)."""

    def accepted(self, leaf: int, *, disturbed: bool) -> Tensor:
        """How far from it is accepted; `disturbed`: with what sums that cancel leave (`acceptance.width`)."""

    def dtype(self, leaf: int) -> torch.dtype:
        """The type in which it is recorded."""


@dataclass(slots=True)
class Own:
    """The Verifier's own gradient, times a factor.

    Attributes:
        derived: The gradient.
        again: Derives it once more, with each of its terms moved.
        factor: One over a number of ranks, or 1.
        ranks: See `Candidate`.
        through: Of which derivation it is.
    """

    derived: Derived
    again: Callable[[], Derived]
    factor: float = 1.0
    ranks: tuple[int, ...] = ()
    through: int = 0
    whole: bool = field(init=False, default=False)
    _widths: dict[int, Tensor] = field(init=False, default_factory=dict)

    @property
    def kind(self) -> tuple[float, ...]:
        """See `Candidate`."""
        return (self.through, self.factor, False)

    def exact(self, leaf: int) -> Tensor:
        """See `Candidate`."""
        exact = self.derived.gradients[leaf].exact
        return exact if self.factor == 1 else self.factor * exact

    def accepted(self, leaf: int, *, disturbed: bool) -> Tensor:
        """See `Candidate`."""
        pair = self.derived.gradients[leaf]
        if disturbed:
            return self.factor * width(pair, self.again().gradients[leaf].exact)
        if leaf not in self._widths:
            self._widths[leaf] = width(pair)
        return self._widths[leaf] if self.factor == 1 else self.factor * self._widths[leaf]

    def dtype(self, leaf: int) -> torch.dtype:
        """See `Candidate`."""
        return self.derived.gradients[leaf].native.dtype


@dataclass(slots=True)
class Part:
    """What one rank brings to a sum over ranks.

    Attributes:
        own: Its gradient.
        leaves: Name to reference.
        before: By reference: exact and accepted sum of the gradients before this backward pass.
        weights: Returns what a leaf is, by reference; None if it is not known, since nothing read it.
    """

    own: Own
    leaves: Mapping[str, int]
    before: Mapping[int, tuple[Tensor, Tensor]]
    weights: Callable[[int], Tensor | None]


@dataclass(slots=True)
class Combined:
    """The sum over ranks of each one's gradient of the same leaf, times a factor.

    Only of replicas: a sum of gradients at different weights is the gradient of nothing.

    Attributes:
        rank: The one that this is for.
        parts: By rank.
        factor: One over a number of ranks, or 1.
        whole: See `Candidate`.
        ranks: See `Candidate`; the whole job if gradients already went from rank to rank.
    """

    rank: int
    parts: Mapping[int, Part]
    factor: float
    whole: bool
    ranks: tuple[int, ...]
    _replicas: dict[tuple[int, int], bool] = field(init=False, default_factory=dict)

    @property
    def kind(self) -> tuple[float, ...]:
        """See `Candidate`."""
        return (self.parts[self.rank].own.through, self.factor, self.whole)

    @property
    def derived(self) -> Derived:
        """See `Candidate`."""
        return self.parts[self.rank].own.derived

    def exact(self, leaf: int) -> Tensor:
        """See `Candidate`."""
        total = torch.zeros_like(self.parts[self.rank].own.exact(leaf))
        for part, theirs in self._theirs(leaf):
            total = total + part.own.exact(theirs)
            if self.whole and theirs in part.before:
                total = total + part.before[theirs][0]
        return self.factor * total

    def accepted(self, leaf: int, *, disturbed: bool) -> Tensor:
        """See `Candidate`."""
        exact = self.exact(leaf)
        total = torch.zeros_like(exact)
        for part, theirs in self._theirs(leaf):
            total = total + part.own.accepted(theirs, disturbed=disturbed)
            if self.whole and theirs in part.before:
                total = total + part.before[theirs][1]
        return self.factor * total + 4 * unit(self.dtype(leaf)) * exact.abs()

    def dtype(self, leaf: int) -> torch.dtype:
        """See `Candidate`."""
        return self.parts[self.rank].own.dtype(leaf)

    def _theirs(self, leaf: int) -> Iterator[tuple[Part, int]]:
        name = next((name for name, ref in self.parts[self.rank].leaves.items() if ref == leaf), None)
        shape = self.parts[self.rank].own.derived.gradients[leaf].exact.shape
        for part in self.parts.values():
            theirs = part.leaves.get(name or "", -1)
            pair = part.own.derived.gradients.get(theirs)
            if pair is not None and pair.exact.shape == shape and self._replica(leaf, part, theirs):
                yield part, theirs

    def _replica(self, leaf: int, part: Part, theirs: int) -> bool:
        key = id(part), leaf
        if key not in self._replicas:
            self._replicas[key] = alike(self.parts[self.rank].weights(leaf), part.weights(theirs))
        return self._replicas[key]


@dataclass(slots=True)
class Mixed:
    """Candidates of one kind, for each leaf the one that fits.

    Attributes:
        chosen: By reference of the leaf.
    """

    chosen: Mapping[int, Candidate]

    @property
    def _any(self) -> Candidate:
        return next(iter(self.chosen.values()))

    @property
    def kind(self) -> tuple[float, ...]:
        """See `Candidate`."""
        return self._any.kind

    @property
    def derived(self) -> Derived:
        """See `Candidate`."""
        return self._any.derived

    @property
    def whole(self) -> bool:
        """See `Candidate`."""
        return self._any.whole

    @property
    def ranks(self) -> tuple[int, ...]:
        """See `Candidate`."""
        return tuple(sorted({rank for each in self.chosen.values() for rank in each.ranks}))

    def exact(self, leaf: int) -> Tensor:
        """See `Candidate`."""
        return self.chosen[leaf].exact(leaf)

    def accepted(self, leaf: int, *, disturbed: bool) -> Tensor:
        """See `Candidate`."""
        return self.chosen[leaf].accepted(leaf, disturbed=disturbed)

    def dtype(self, leaf: int) -> torch.dtype:
        """See `Candidate`."""
        return self.chosen[leaf].dtype(leaf)


def alike(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two ranks hold the same weights; what is not known on either was not read, so its gradient is zero."""
    return one is None or other is None or torch.equal(one, other)


def combinations(
    parts: Mapping[int, Part], rank: int, groups: list[tuple[int, ...]], *, coupled: bool
) -> Iterator[Candidate]:
    """Yields what the gradients of a rank may be, the simplest first.

    Args:
        parts: Of every rank of the job.
        rank: The rank.
        groups: Ranks that meet in a collective of the step with this one among them.
        coupled: Whether a rank's own gradient already includes what the others' losses say.
    """
    sizes = sorted({len(parts), *(len(group) for group in groups)})
    factors = [1.0, *(1.0 / size for size in sizes if size > 1)]
    whole_job = tuple(parts)
    for factor in factors:
        own = parts[rank].own
        yield Own(own.derived, own.again, factor, whole_job if coupled else (rank,), own.through)
    for group in sorted({*groups, whole_job}, key=len):
        if len(group) < 2:
            continue
        members = {each: parts[each] for each in group}
        for factor in sorted(factors, key=lambda f: abs(f - 1.0 / len(group))):
            for whole in (False, True):
                yield Combined(rank, members, factor, whole, whole_job if coupled else group)
