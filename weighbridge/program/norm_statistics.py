"""State that is nothing but statistics of batch norms: what any step's batch leaves there, an earlier one may too.

A model that is tried in training mode before it trains keeps statistics of that batch. Each training step goes on to
mix those of its own batch in, which is charged to nothing, as data may be anything. So the first ones choose nothing
that a step could not choose.
"""

from __future__ import annotations

from typing import NamedTuple

from weighbridge.program.effects import effects
from weighbridge.program.operands import resolve
from weighbridge.transcript.tape import Node, Tape, references

_NORMS = {
    "_native_batch_norm_legit.default": "training",
    "_native_batch_norm_legit_no_training.default": "",
    "native_batch_norm_backward.default": "",
}
"""Operations on batch norms, and the operand that says whether one changes its statistics; empty if it never does."""
_STATISTICS = ("running_mean", "running_var")


class Statistics(NamedTuple):
    """Storages of one tape that batch norms use as statistics.

    Attributes:
        alone: Those that nothing else uses: they are at most made, or filled, without any tensor.
        changed: Those into which a batch norm in training mode mixes its batch's.
    """

    alone: set[int]
    changed: set[int]


def statistics(tape: Tape) -> Statistics:
    """Finds the statistics of batch norms in a tape.

    Args:
        tape: A decoded tape.

    Raises:
        TapeError: It names an operation that is not allowed.
    """
    own: dict[int, set[int]] = {}
    changed: set[int] = set()
    for at, node in enumerate(tape.nodes):
        if node.op in _NORMS:
            own[at], changes = _own(tape, node)
            changed |= own[at] if changes else set()
    every = set().union(*own.values())
    if not every:
        return Statistics(set(), set())
    spoiled: set[int] = set()
    host = False
    for effect in effects(tape):
        there = own.get(effect.op, set())
        written = {ref[0] for ref in effect.targets} | {slot for slot, _ in effect.births}
        if effect.given or effect.drawn or (effect.numbers and host):
            spoiled |= written - there
        spoiled |= {slot for slot in effect.reads if slot not in there and slot not in written}
        spoiled |= {slot for slot, _ in effect.grows}
        host |= effect.host
    return Statistics(every - spoiled, (every - spoiled) & changed)


def _own(tape: Tape, node: Node) -> tuple[set[int], bool]:
    """The storages that a batch norm uses as statistics and as nothing else, and whether it changes them."""
    names = [argument.name for argument in resolve(node.op)._schema.arguments]
    bound = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    slots = {name: {tape.refs[r][0] for r in references(operand)} for name, operand in bound.items()}
    kept = set().union(*(slots.get(name, set()) for name in _STATISTICS))
    others = set().union(*(each for name, each in slots.items() if name not in _STATISTICS))
    return kept - others, bound.get(_NORMS[node.op]) is True
