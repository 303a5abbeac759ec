"""What a forward pass is, from the program alone: which loss, what it depends on, where weights meet the batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from weighbridge.execution.recognition.values import Plan
from weighbridge.numerics.schemas import bind
from weighbridge.program.gradient_paths import floating, is_view, makes_anew, operands, results
from weighbridge.program.operands import resolve
from weighbridge.transcript.collectives import is_collective
from weighbridge.transcript.tape import DTYPES, Node, Ref, references
from weighbridge.transcript.training_claims import Backward

_LOSSES = {
    "nll_loss_forward": "negative log likelihood",
    "nll_loss2d_forward": "negative log likelihood",
    "mse_loss": "mean squared error",
    "l1_loss": "mean absolute error",
    "smooth_l1_loss": "smooth L1 loss",
    "huber_loss": "Huber loss",
    "binary_cross_entropy": "binary cross entropy",
    "binary_cross_entropy_with_logits": "binary cross entropy",
    "soft_margin_loss": "soft margin loss",
    "multi_margin_loss": "multi margin loss",
    "_ctc_loss": "CTC loss",
}
"""Operations that make a loss of predictions and targets."""

_ONE_BY_ONE = frozenset(
    {
        "add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "div_", "where", "minimum", "maximum", "lerp",
        "lerp_", "addcmul", "addcdiv", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
        "kl_div", "pow", "copy_", "atan2", "hypot", "fmod", "_euclidean_dist", "_cdist_forward", "dist", "cat", "stack",
    }
)  # fmt: skip
"""Operations that take one element of each operand to one of the result, and distances."""

_PRODUCTS = frozenset({"dot", "vdot", "mm", "mv", "bmm", "addmm", "addmv", "baddbmm"})

_STATISTICS = ("running_mean", "running_var")

_LONGEST = 400


def kinds(plan: Plan, backward: Backward) -> tuple[str, int]:
    """Says what a backward pass was called on, from the last operations that made it.

    Returns:
        Its name, and the operation that made it (-1 if none of the step did).
    """
    tape = plan.tape
    made: dict[int, list[int]] = {}
    for op in plan.forward:
        if op < backward.begin and not is_view(tape, tape.nodes[op]):
            for index in results(tape.nodes[op]):
                made.setdefault(tape.refs[index][0], []).append(op)
    front = [(tape.refs[index][0], backward.begin) for index in backward.losses]
    seen, names, plain, last = set[int](), list[str](), list[str](), -1
    while front and len(seen) < _LONGEST:
        slot, before = front.pop(0)
        op = max((o for o in made.get(slot, ()) if o < before), default=-1)
        if op < 0 or op in seen:
            continue
        seen.add(op)
        last = max(last, op)
        base = tape.nodes[op].op.partition(".")[0].removeprefix("aten::")
        if base in _LOSSES:
            names.append(_named(base, plan, op, made))
            continue
        if makes_anew(tape.nodes[op]):
            continue
        if base not in plain:
            plain.append(base)
        front += [(tape.refs[r][0], op) for r in operands(tape.nodes[op]) if floating(tape.refs[r])]
    found = list(dict.fromkeys(names))
    if found:
        return " and ".join(found[:4]), last
    return "a loss made by " + ", ".join(plain[:5]) if plain else "a value", last


def _named(base: str, plan: Plan, op: int, made: dict[int, list[int]]) -> str:
    read = operands(plan.tape.nodes[op])
    before = max((o for o in made.get(plan.tape.refs[read[0]][0], ()) if o < op), default=-1)
    if base.startswith("nll") and before >= 0 and "log_softmax" in plan.tape.nodes[before].op:
        return "cross entropy"
    return _LOSSES[base]


class Needs(NamedTuple):
    """On what something depends.

    Attributes:
        inputs: Slots of inputs.
        collectives: Operations to which other ranks contribute.
    """

    inputs: set[int]
    collectives: set[int]


def depends(plan: Plan, backward: Backward) -> Needs:
    """Returns on what depends what a backward pass was called on."""
    refs = plan.tape.refs
    wanted = {refs[index][0] for index in (*backward.losses, *(s for s in backward.seeds if s is not None))}
    return _needs(plan, wanted, backward.begin, ())


def contributes(plan: Plan, sent: Collection[int]) -> Needs:
    """Returns on what depends what this rank contributes to collectives, given by operation."""
    return _needs(plan, set(), len(plan.tape.nodes), sent) if sent else Needs(set(), set())


def _needs(plan: Plan, wanted: set[int], end: int, sent: Collection[int]) -> Needs:
    """Goes back through all operations, since what is claimed to be a backward pass may move anything."""
    tape, collectives = plan.tape, set[int]()
    for op in reversed(range(end)):
        node = tape.nodes[op]
        if is_view(tape, node):
            continue
        if op in sent:
            wanted |= {tape.refs[r][0] for r in read_by(node)}
        if not {tape.refs[index][0] for index in results(node)} & wanted:
            continue
        if is_collective(node):
            collectives.add(op)
        wanted -= {slot for slot, _ in node.births}
        if not makes_anew(node):
            wanted |= {tape.refs[r][0] for r in read_by(node)}
    return Needs(wanted & {item.slot for item in tape.inputs}, collectives)


def read_by(node: Node) -> list[int]:
    """The operands on which a node's results depend: batch norm that trains only writes to its statistics."""
    if "batch_norm" not in node.op and "instance_norm" not in node.op:
        return operands(node)
    op = resolve(node.op)
    bound = bind(op, node.args, node.kwargs)
    trains = bound.get("training", bound.get("train", bound.get("use_input_stats", False)))
    if trains is not True:
        return operands(node)

    return [r for name, value in bound.items() if name not in _STATISTICS for r in references(value)]


def direct(plan: Plan, backward: Backward, leaves: Iterable[int]) -> set[int]:
    """Returns the slots of leaves that meet the batch one element by one, with no model of the batch between them.

    Args:
        plan: That of the tape.
        backward: Which loss.
        leaves: Their slots.
    """
    tape = plan.tape
    bits = {slot: 1 << n for n, slot in enumerate(leaves)}
    weights: dict[int, int] = dict(bits)
    data = {item.slot for item in tape.inputs if item.origin in ("batch", "free")}
    found = 0
    for op in plan.forward:
        node = tape.nodes[op]
        if op >= backward.begin or is_view(tape, node) or makes_anew(node):
            continue
        read = [tape.refs[r] for r in operands(node)]
        mine = [r for r in read if r[0] in weights]
        theirs = [r for r in read if r[0] in data and r[0] not in weights]
        if is_collective(node) and not mine and len(theirs) == len(read):  # what other ranks send may be their batches
            data |= {tape.refs[index][0] for index in results(node) if tape.refs[index][0] not in weights}
            continue
        outputs = [tape.refs[index] for index in results(node)]
        if mine and theirs:
            if _one_by_one(node, mine, theirs, outputs):
                for r in mine:
                    found |= weights[r[0]]
            for out in outputs:  # mixed from here on
                weights.pop(out[0], None)
                data.discard(out[0])
            continue
        mask = 0
        for r in mine:
            mask |= weights[r[0]]
        pure = all(r[0] in weights or not floating(r) or r[0] in data or _constant(r, plan) for r in read)
        for out in outputs:
            if mask and pure:
                weights[out[0]] = weights.get(out[0], 0) | mask
            elif theirs and not mine and all(r[0] in data or _constant(r, plan) for r in read):
                data.add(out[0])
    return {slot for slot, bit in bits.items() if bit & found}


def _constant(ref: Ref, plan: Plan) -> bool:
    """Whether a tensor is small enough to be a number, or holds no floating-point numbers."""
    count = 1
    for n in ref[2]:
        count *= n
    return count <= 1 or not DTYPES[ref[1]].is_floating_point


def _one_by_one(node: Node, mine: list[Ref], theirs: list[Ref], outputs: list[Ref]) -> bool:
    base = node.op.partition(".")[0]
    own, given = max(map(_count, mine)), max(map(_count, theirs))
    floats = any(floating(r) for r in theirs)
    if not floats or own <= 1:
        return False
    if base in _ONE_BY_ONE:
        return given <= own
    return base in _PRODUCTS and given == own and bool(outputs) and _count(outputs[0]) <= 1


def _count(ref: Ref) -> int:
    count = 1
    for n in ref[2]:
        count *= n
    return count
