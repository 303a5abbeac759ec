"""What a backward pass does that no derivative does.

The numbers of a step confirm a gradient with the data of this step. A hook or a backward pass of one's own can do more
with other data: add a tensor of the batch that is zero here, or multiply by one that is one here. Derivatives are
linear: nothing but gradients is ever added to a gradient. And what a gradient is multiplied by is of the operation of
the forward pass whose derivative is taken: its operands, its results, and what follows from these alone.

Where in the forward pass a gradient is, is followed from the loss on. Operations that are linear, or have one tensor
only, may be passed without a trace. So this finds what has nothing to do with the place, and not every change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weighbridge.execution.recognition.backward_walk import ByHand, Exchange, Walk
from weighbridge.execution.recognition.limits import check_time
from weighbridge.execution.recognition.values import Plan
from weighbridge.transcript.collectives import Pairing
from weighbridge.transcript.training_claims import Backward


@dataclass(frozen=True, slots=True)
class Pass:
    """One rank's backward pass.

    Attributes:
        plan: That of the rank's tape.
        backward: The backward pass.
        names: Slot to name.
        pairings: Of each collective: by what other ranks know it.
    """

    plan: Plan
    backward: Backward
    names: Mapping[int, str]
    pairings: Mapping[int, Pairing]


def together(passes: Sequence[Pass], until: float) -> list[ByHand]:
    """Looks for it in the backward passes that the ranks of a job make together.

    What two collectives give is the same if every rank contributes the same to both, and a gradient if one rank
    contributes a gradient. Each rank's pass is gone through until all agree.

    Args:
        passes: By rank.
        until: As of `weighbridge.execution.recognition.limits.check_time`.

    Returns:
        What was found, by rank.
    """
    known = [Exchange() for _ in passes]
    while True:
        check_time(until)
        found = [_found(each, of) for each, of in zip(passes, known, strict=True)]
        classes: dict[Pairing, list[tuple[int, int]]] = {}
        gradients = set[Pairing]()
        for rank, (each, theirs) in enumerate(zip(passes, found, strict=True)):
            for op, own in theirs.exchanged.items():
                classes.setdefault(each.pairings[op], []).append((rank, own))
            gradients |= {each.pairings[op] for op in theirs.contributed}
        numbers = {all_of_them: n for n, all_of_them in enumerate(dict.fromkeys(map(tuple, classes.values())))}
        agreed = [
            Exchange(
                {op: numbers[tuple(classes[each.pairings[op]])] for op in theirs.exchanged},
                {op for op in theirs.exchanged if each.pairings[op] in gradients},
            )
            for each, theirs in zip(passes, found, strict=True)
        ]
        if agreed == known:
            return found
        known = agreed


def _found(own: Pass, exchange: Exchange) -> ByHand:
    """Looks for it on one rank, which knows so much of the others."""
    tape, backward = own.plan.tape, own.backward
    walk, outside = Walk(own.plan, own.names, exchange), set(own.plan.forward)
    for op in range(backward.begin):
        walk.forward(op, tape.nodes[op], op in outside)
    walk.begin(backward)
    for op in range(backward.begin, backward.end):
        walk.back(op, tape.nodes[op])
    return walk.found
