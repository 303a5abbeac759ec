"""Which operations of a tape carry gradients: from the leaves on, storage by storage.

A Prover uses this to claim the stops that matter and no others, a Verifier to know which of them hide a path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from weighbridge.transcript.collectives import PREFIX, is_collective
from weighbridge.transcript.tape import DTYPES, Node, Ref, Tape, references

WHOLE = -1
"""Stands for all operands of an operation."""


def operands(node: Node) -> list[int]:
    """The tensors among a node's operands as indices of references, in order, keywords by name.

    Of a collective, those that it contributes.
    """
    if is_collective(node):
        return list(references(node.args[1:2]))
    return [*references(node.args), *(r for name in sorted(node.kwargs) for r in references(node.kwargs[name]))]


def results(node: Node) -> list[int]:
    """The tensors that a node makes or writes to as indices of references; of a collective, those that it gets."""
    if is_collective(node):
        return list(references(node.args[:1]))
    return [index for index in node.outputs if index is not None]


def outside(count: int, ranges: Iterable[tuple[int, int]]) -> list[int]:
    """The operations of a tape of `count` that are in none of some ranges."""
    inside: set[int] = set()
    for begin, end in ranges:
        inside.update(range(begin, min(end, count)))
    return [op for op in range(count) if op not in inside]


def carried(
    tape: Tape,
    leaves: Collection[int],
    ranges: Iterable[tuple[int, int]],
    without: Sequence[tuple[int, ...] | None],
    calls: Sequence[int],
) -> list[tuple[int, int]]:
    """Finds where gradients stop that would flow if all operations carried them.

    Args:
        tape: The tape.
        leaves: Slots of the leaves.
        ranges: Operations that are not part of a forward pass.
        without: For each operation: the tensors among its operands that carry no gradient; None for all.
        calls: For each operation: the first one that the same call made. What a call makes for itself carries
            gradients, whatever it says.

    Returns:
        (Operation, number of the operand or `WHOLE`), ascending.
    """
    reached, stops = set(leaves), list[tuple[int, int]]()
    born: dict[int, int] = {}
    views: dict[int, int] = {}

    def own(op: int, reference: int) -> bool:
        """Whether an operation's call made an operand itself, or a view of what it was given with a gradient."""
        first = calls[op]
        return first <= max(born.get(tape.refs[reference][0], -1), views.get(reference, -1)) < op

    for op in outside(len(tape.nodes), ranges):
        node, flags = tape.nodes[op], without[op]
        for slot, _ in node.births:
            born[slot] = op
        if is_view(tape, node) and flags is not None:
            given = operands(node)
            carries = bool(given) and (0 not in flags or own(op, given[0]))
            for made in node.outputs:
                if made is not None:
                    views[made] = op if carries else -1
        if all(ref is None or not floating(tape.refs[ref]) for ref in node.outputs) or makes_anew(node):
            continue
        if not node.births and is_view(tape, node):
            continue
        named = operands(node)
        read = [tape.refs[r] for r in named]
        flows = False
        if flags is None:
            if any(ref[0] in reached and floating(ref) for ref in read):
                stops.append((op, WHOLE))
            continue
        for number, ref in enumerate(read):
            if ref[0] not in reached or not floating(ref):
                continue
            if number in flags and not own(op, named[number]):
                stops.append((op, number))
            else:
                flows = True
        if flows:
            reached.update(tape.refs[ref][0] for ref in node.outputs if ref is not None and floating(tape.refs[ref]))
    return stops


def floating(ref: Ref) -> bool:
    """Whether a tensor holds numbers that can have a gradient."""
    return DTYPES[ref[1]].is_floating_point


def makes_anew(node: Node) -> bool:
    """Whether a node's results follow from no content: memory without any, constants, chance."""
    base = node.op.partition(".")[0]
    if base.endswith("_like") or base.startswith(("new_", "empty")) or node.op in _DRAWN_OF_A_SHAPE:
        return True
    if node.draw is None and base not in _CONSTANT:
        return False
    own = references(node.args[:1]) if base.endswith("_") else []
    return len(operands(node)) == len(own)


_CONSTANT = frozenset({"zero_", "fill_", "full", "zeros", "ones", "arange", "scalar_tensor", "eye", "linspace"})
_DRAWN_OF_A_SHAPE = frozenset({"bernoulli.p", "uniform.default", "random.default", "random.from", "random.to"})
"""Draws that take a tensor for its shape. `bernoulli.default` and `normal.Tensor_float` take one for its numbers."""


def is_view(tape: Tape, node: Node) -> bool:
    """Whether a node only names memory anew: it makes none, and its results lie on an operand under another name."""
    if node.op.startswith(PREFIX):
        return False
    named = operands(node)
    slots = {tape.refs[r][0] for r in named}
    return (
        not node.births
        and not node.op.partition(".")[0].endswith("_")
        and all(ref is not None and tape.refs[ref][0] in slots for ref in node.outputs)
    )
