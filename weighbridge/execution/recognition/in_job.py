"""Recognises steps of a job on several ranks: all ranks of a step together, once the last has executed it.

A rank's gradient is that of its own loss and, through what ranks exchange, of the others' losses. So the Verifier
differentiates the sum of all losses backwards through all tapes at once, where a collective is a sum of numbers that
moved. Replicas whose gradients are averaged after that are tried as sums over each group that meets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.recognition import by_hand
from weighbridge.execution.recognition.between import Shared
from weighbridge.execution.recognition.candidates import Candidate, Own, Part, alike, combinations
from weighbridge.execution.recognition.derivation import Derivation, Derived, Pair, UnderivableError
from weighbridge.execution.recognition.limits import check_time, until
from weighbridge.execution.recognition.outcome import LONGEST, MOST, Recognition
from weighbridge.execution.recognition.recogniser import Recogniser, events, noted
from weighbridge.execution.recognition.step_run import StepRun, Sum
from weighbridge.execution.recognition.values import Values
from weighbridge.program.operands import UNFIT
from weighbridge.transcript.collectives import Call, Pairing, calls
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.training_claims import Backward, Step

Tensor = torch.Tensor

_SUMS = ("", "sum", "avg")
"""Reductions that have one gradient for all that comes in."""


@dataclass(slots=True)
class Executed:
    """A step as one rank executed it.

    Attributes:
        recogniser: That of its tape.
        record: Its record.
        values: What its storages held.
        replayed: Seconds that its replay took.
    """

    recogniser: Recogniser
    record: StepRecord
    values: Values
    replayed: float


def recognise(ranks: Sequence[Executed]) -> list[Recognition]:
    """Says what a step of a job is, for each rank."""
    began = time.perf_counter()
    step = _JobStep(ranks, until(sum(each.replayed for each in ranks)))
    try:
        step.run()
    except (WeighbridgeError, *UNFIT) as error:
        for run in step.runs:
            with noted(run):
                raise error
    seconds = time.perf_counter() - began
    found = []
    for rank, run in enumerate(step.runs):
        for other, theirs in enumerate(step.runs):
            if other != rank and theirs.reasons:
                (run.unknown if theirs.is_unknown else run.reason)(f"rank {other}: {theirs.reasons[0]}")
        each = ranks[rank]
        found.append(run.result(each.record.tape, seconds / len(ranks), each.replayed))
    return [_together(rank, found) for rank in range(len(found))]


def _together(rank: int, found: Sequence[Recognition]) -> Recognition:
    """Adds to what is found of a rank what its gradients bring of the others."""
    own = found[rank]
    losses = []
    for place, loss in enumerate(own.losses):
        theirs = [(r, found[r].losses[place]) for r in loss.ranks if place < len(found[r].losses)]
        kinds = dict.fromkeys([loss.kind, *(each.kind for _, each in theirs)])
        direct = [f"{name} (rank {r})" for r, each in theirs if r != rank for name in each.direct]
        losses.append(replace(loss, kind=" and ".join(kinds)[:LONGEST], direct=(*loss.direct, *direct)[:MOST]))
    return replace(
        own,
        losses=tuple(losses),
        float_bits=sum(each.float_bits for each in found),
        other_bits=sum(each.other_bits for each in found),
    )


@dataclass(slots=True)
class _JobStep:
    ranks: Sequence[Executed]
    until: float
    runs: list[StepRun] = field(init=False)
    calls: list[dict[int, Call]] = field(init=False)

    def __post_init__(self) -> None:
        self.runs = [StepRun(r.recogniser.plan, r.record, r.values, r.recogniser.formulas) for r in self.ranks]
        self.calls = [{c.op: c for c in calls(r.recogniser.tape, n)} for n, r in enumerate(self.ranks)]

    def run(self) -> None:
        """Goes through the events of all ranks, which meet in each backward pass."""
        left = [list(events(each.recogniser.claims)) for each in self.ranks]
        for run in self.runs:
            with noted(run):
                run.begin()
        self._exchanged()
        self._contributed()
        while any(left):
            check_time(self.until)
            sums = [dict(run.sums) for run in self.runs]
            for rank, waiting in enumerate(left):
                while waiting and isinstance(waiting[0], Step):
                    self._update(rank, sums, waiting.pop(0))
            together = [each.pop(0) for each in left if each]
            if not together:
                break
            self._backward(together)
        for run in self.runs:
            with noted(run):
                run.end()
        for each, run in zip(self.ranks, self.runs, strict=True):
            each.recogniser.changed |= run.changed

    def _exchanged(self) -> None:
        """Sees to it that no rank slips something into a collective that another takes for a gradient."""
        foreign = [set[int]() for _ in self.ranks]
        while True:
            check_time(self.until)
            mixed = [run.mixed(foreign[rank]) for rank, run in enumerate(self.runs)]
            brought = {self.calls[rank][op].pairing(0) for rank, each in enumerate(mixed) for op in each.brings}
            found = [{op for op, call in own.items() if call.pairing(0) in brought} for own in self.calls]
            if found == foreign:
                break
            foreign = found
        inside = [self._inside(rank) for rank in range(len(self.ranks))]
        within = {call.pairing(0): rank for rank, own in enumerate(self.calls) for op, call in own.items()
                  if op in inside[rank]}  # fmt: skip
        for rank, (run, own) in enumerate(zip(self.runs, self.calls, strict=True)):
            for text in mixed[rank].reasons:
                run.reason(text)
            for op, call in own.items():
                if (
                    op not in inside[rank]
                    and (other := within.get(call.pairing(0))) is not None
                    and op in foreign[rank]
                ):
                    run.reason(f"operation {op} ({call.name}) brings something else into rank {other}'s backward pass")

    def _contributed(self) -> None:
        """Says to each rank what of its own other ranks' losses depend on."""
        asked = [run.asks() for run in self.runs]
        known = set[Pairing]()
        while True:
            check_time(self.until)
            pairings = {self.calls[rank][op].pairing(0) for rank, ops in enumerate(asked) for op in ops}
            if pairings <= known:
                return
            known |= pairings
            asked = [
                run.contribute({op for op, call in own.items() if call.pairing(0) in known})
                for run, own in zip(self.runs, self.calls, strict=True)
            ]

    def _inside(self, rank: int) -> set[int]:
        """Operations within backward passes."""
        return {op for b in self.ranks[rank].recogniser.claims.backwards for op in range(b.begin, b.end)}

    def _update(self, rank: int, sums: Sequence[Mapping[int, Sum]], step: Backward | Step) -> None:
        assert isinstance(step, Step)
        with noted(self.runs[rank]):
            self.runs[rank].update(step, [self._shared(rank, sums, group) for group in self._groups(rank)])

    def _shared(self, rank: int, sums: Sequence[Mapping[int, Sum]], group: tuple[int, ...]) -> Shared:
        """The sum over a group of the gradients that each backward pass left, by leaf of one rank."""
        named = {member: self._leaves(member) for member in group}
        left, exact, accepted = dict[int, Tensor](), dict[int, Tensor](), dict[int, Tensor]()
        for name, ref in self._leaves(rank).items():
            theirs = [sums[m].get(named[m].get(name, -1)) for m in group if self._replica(rank, ref, m, named[m])]
            there = [each for each in theirs if each is not None]
            if there and all(each.exact.shape == there[0].exact.shape for each in there):
                left[ref] = torch.stack([each.recorded for each in there]).sum(0)
                exact[ref] = torch.stack([each.exact for each in there]).sum(0)
                accepted[ref] = torch.stack([each.accepted for each in there]).sum(0)
        return Shared(group, left, exact, accepted)

    def _replica(self, rank: int, leaf: int, member: int, named: Mapping[str, int]) -> bool:
        """Whether a leaf of one rank is what the leaf of the same name is on another when its first step begins."""
        found = []
        for each, ref in ((rank, leaf), (member, named.get(self.runs[rank].name(leaf), -1))):
            steps = self.ranks[each].recogniser.claims.steps
            found.append(self.ranks[each].values.at(steps[0].begin, ref) if steps and ref >= 0 else None)
        return alike(*found)

    def _groups(self, rank: int) -> list[tuple[int, ...]]:
        found = {call.group for call in self.calls[rank].values() if call.reduction in ("sum", "avg")}
        return sorted(group for group in found if len(group) > 1)

    def _leaves(self, rank: int) -> dict[str, int]:
        run = self.runs[rank]
        claims = self.ranks[rank].recogniser.claims
        return {run.name(g.leaf): g.leaf for b in claims.backwards for g in b.gradients}

    # -- one backward pass of all ranks ------------------------------------------------------------------------------

    def _backward(self, together: Sequence[Backward | Step]) -> None:
        backwards = [each for each in together if isinstance(each, Backward)]
        if len(backwards) != len(self.ranks):
            for run in self.runs:
                run.reason("the ranks make different numbers of backward passes")
            return
        before = [{ref: (s.exact, s.accepted) for ref, s in run.sums.items()} for run in self.runs]
        made_by_hand = by_hand.together(
            [
                run.looked_through(backward, {op: call.pairing(0) for op, call in own.items()})
                for run, backward, own in zip(self.runs, backwards, self.calls, strict=True)
            ],
            self.until,
        )
        for rank, (run, backward) in enumerate(zip(self.runs, backwards, strict=True)):
            with noted(run):
                try:
                    run.backward(backward, self._candidates(rank, backwards, before), made_by_hand[rank])
                except UnderivableError as error:
                    run.reason(error.message)

    def _candidates(
        self, rank: int, backwards: Sequence[Backward], before: Sequence[Mapping[int, tuple[Tensor, Tensor]]]
    ) -> Iterator[Candidate]:
        for through in (0, 1, 2):

            def derived(through: int = through, *, disturbed: bool = False) -> tuple[list[Derived], bool]:
                return self._derived(backwards, through, disturbed=disturbed)

            found, coupled = derived()
            again = cache(lambda derived=derived: derived(disturbed=True)[0])
            parts = {
                other: Part(
                    Own(found[other], _of(again, other), through=through),
                    self._leaves(other),
                    before[other],
                    self._weights(other, backwards[other]),
                )
                for other in range(len(self.ranks))
            }
            for candidate in combinations(parts, rank, self._groups(rank), coupled=coupled):
                check_time(self.until)
                yield candidate

    def _weights(self, rank: int, backward: Backward) -> Callable[[int], Tensor | None]:
        """Says what a leaf is when a backward pass begins."""
        return lambda leaf: self.ranks[rank].values.at(backward.begin, leaf)

    def _derived(self, backwards: Sequence[Backward], through: int, *, disturbed: bool) -> tuple[list[Derived], bool]:
        """The gradient of the sum of all ranks' losses, and whether a gradient went from rank to rank."""
        each = [
            Derivation(
                r.recogniser.plan, r.values, r.record.values, r.recogniser.device,
                recomputed=through > 0, through=through, disturbed=disturbed, until=self.until,
            )
            for r in self.ranks
        ]  # fmt: skip
        waiting: list[Call | None] = []
        for rank, (derivation, backward) in enumerate(zip(each, backwards, strict=True)):
            derivation.begin(backward)
            waiting.append(self._advance(derivation, rank))
        coupled = False
        while any(waiting):
            call = self._meeting(waiting)
            taken = {rank: each[rank].take(self._at(waiting, rank).op) for rank in call.group}
            coupled |= self._back(call.reduction, {r: self._at(waiting, r) for r in call.group}, taken, each)
            for rank in call.group:
                waiting[rank] = self._advance(each[rank], rank)
        return [d.finish(b) for d, b in zip(each, backwards, strict=True)], coupled

    def _advance(self, derivation: Derivation, rank: int) -> Call | None:
        op = derivation.advance()
        return None if op is None else self.calls[rank][op]

    @staticmethod
    def _at(waiting: Sequence[Call | None], rank: int) -> Call:
        call = waiting[rank] if rank < len(waiting) else None
        if call is None:
            raise UnderivableError(f"rank {rank} does not come to a collective before its backward pass")
        return call

    @staticmethod
    def _meeting(waiting: Sequence[Call | None]) -> Call:
        """A collective at which all of its members wait."""
        for call in waiting:
            if call is None:
                continue
            met = [waiting[rank] if rank < len(waiting) else None for rank in call.group]
            if all(each is not None and each.pairing(0) == call.pairing(0) and each.matches(call) for each in met):
                return call
        stuck = next(call for call in waiting if call is not None)
        raise UnderivableError(
            f"operation {stuck.op} ({stuck.name}) before the backward pass is not met by all of its group before theirs"
        )

    def _back(
        self, reduction: str, met: Mapping[int, Call], taken: Mapping[int, list[Pair | None]],
        each: Sequence[Derivation],
    ) -> bool:  # fmt: skip
        """Hands the gradients of what a collective gave to those who contributed it; says whether there are any."""
        flows = False
        for rank, call in met.items():
            for sources, gradient in zip(call.sources(rank), taken[rank], strict=True):
                if gradient is None or not bool(gradient.exact.any()):
                    continue
                if reduction not in _SUMS:
                    raise UnderivableError(f"operation {call.op} ({call.name}, {reduction}) has no derivative here")
                scale = 1.0 / len(call.group) if reduction == "avg" else 1.0
                for member, index in sources:
                    giver = call.group[member]
                    ref = met[giver].ins[index]
                    if math.prod(ref[2]) != gradient.exact.numel():
                        raise UnderivableError(f"operation {call.op} ({call.name}) meets tensors of other sizes")
                    each[giver].give(ref, Pair(gradient.exact * scale, gradient.native * scale))
                    flows |= giver != rank
        return flows


def _of(again: Callable[[], list[Derived]], rank: int) -> Callable[[], Derived]:
    return lambda: again()[rank]
