"""What a Prover can choose of the structure of programs: each mutation picks one of many, and says how many bits."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from redteam.remade import Run
from redteam.remade_edits import WORD, alive, append, bound_to, chosen, operand, refer, where

from weighbridge.transcript.tape import Node, Tape, references


def offset(run: Run, at: int, pick: Random) -> float:
    """The bias is read from somewhere among the weights."""
    tape = run.steps[at].tape
    slot = next(item.slot for item in tape.inputs if item.name == "model.0.weight")
    operand(tape, where(tape, "addmm.default"), 0, ("t", refer(tape, (slot, "f32", (6,), (1,), pick.randrange(256)))))
    return 8.0


def stride(run: Run, at: int, pick: Random) -> float:
    """Rows of the batch lie nearer to each other."""
    tape = run.steps[at].tape
    slot, dtype, size, _, _ = tape.refs[tape.nodes[op := where(tape, "add.Tensor")].args[0][1]]
    operand(tape, op, 0, ("t", refer(tape, (slot, dtype, size, (pick.randrange(64), 1), 0))))
    return 6.0


def size(run: Run, at: int, pick: Random) -> float:
    """A part of a bias is updated."""
    tape = run.steps[at].tape
    op = where(tape, "add_.Tensor", last=True)
    sizes = pick.randrange(8)
    for place in (0, 1):
        ref = tape.refs[tape.nodes[op].args[place][1]]
        operand(tape, op, place, ("t", refer(tape, (ref[0], "f32", (1 + sizes,), (1,), 0))))
    tape.nodes[op] = tape.nodes[op]._replace(outputs=(tape.nodes[op].args[0][1],))
    return 3.0


def dtype(run: Run, at: int, pick: Random) -> float:
    """The batch's bytes are read as integers."""
    tape = run.steps[at].tape
    slot, _, size, strides, _ = tape.refs[tape.nodes[op := where(tape, "add.Tensor")].args[0][1]]
    kind, width = pick.choice([("i32", 1), ("i16", 2), ("i8", 4), ("u8", 4)])
    operand(tape, op, 0, ("t", refer(tape, (slot, kind, size, tuple(width * s for s in strides), 0))))
    return 2.0


def other_operand(run: Run, at: int, pick: Random) -> float:
    """An operand is another tensor of the same size."""
    tape = run.steps[at].tape
    there = [(op, place, ref) for op in range(len(tape.nodes)) for place, ref in _others(tape, op)]
    op, place, ref = pick.choice(there)
    operand(tape, op, place, ("t", ref))
    return math.log2(len(there))


def _others(tape: Tape, op: int) -> list[tuple[int, int]]:
    slots, found = alive(tape, op), []
    for place, argument in enumerate(tape.nodes[op].args):
        if references((argument,)) == [argument[1]] if type(argument) is tuple and argument[0] == "t" else False:
            own = tape.refs[argument[1]]
            mutable = place == 0 and tape.nodes[op].op.partition(".")[0].endswith("_")
            if not mutable and tape.nodes[op].births:
                found += [
                    (place, i)
                    for i, r in enumerate(tape.refs)
                    if r[:1] != own[:1] and r[1:3] == own[1:3] and r[0] in slots
                ]
    return found


def other_operation(run: Run, at: int, pick: Random) -> float:
    """Another function in the place of tanh."""
    names = ("sigmoid", "sin", "cos", "exp", "relu", "erf", "neg", "atan")
    tape = run.steps[at].tape
    op = where(tape, "tanh.default")
    tape.nodes[op] = tape.nodes[op]._replace(op=f"{pick.choice(names)}.default")
    return math.log2(len(names))


def inserted(run: Run, at: int, pick: Random) -> float:
    """A number is added to a bias."""
    step = run.steps[at]
    ref = bound_to(step.tape, "model.0.bias")
    append(step, Node("add_.Scalar", (("t", ref), ("v", step.tape.values)), {}, (ref,)), chosen(pick))
    return WORD


def removed(run: Run, at: int, pick: Random) -> float:
    """One of the last operations, which change state in place, does not run."""
    tape = run.steps[at].tape
    there = [op for op, node in enumerate(tape.nodes) if node.op in ("add_.Tensor", "mul_.Tensor")][-8:]
    op = pick.choice(there)
    del tape.nodes[op]
    tape.frees[:] = [(free - (free > op), slot) for free, slot in tape.frees]
    return math.log2(len(there))


def free_moved(run: Run, at: int, pick: Random) -> float:
    """A storage dies later than it did."""
    tape = run.steps[at].tape
    (first, slot), *rest = tape.frees
    tape.frees[:] = sorted([*rest, (first + pick.randrange(1, 33), slot)])
    return 5.0


def survivor(run: Run, at: int, pick: Random) -> float:
    """State has a name of the Prover's choosing."""
    name = f"kept.{pick.getrandbits(64):016x}"
    for step in run.steps[1:]:
        tape = step.tape
        tape.survivors[:] = [(slot, name if n.startswith("optimizer.0.bias") else n) for slot, n in tape.survivors]
        tape.inputs[:] = [replace(i, name=name) if i.name.startswith("optimizer.0.bias") else i for i in tape.inputs]
    return 64.0


def batch_layout(run: Run, at: int, pick: Random) -> float:
    """The batch lies later in its storage than where it is read."""
    tape, shift = run.steps[at].tape, pick.randrange(256)
    tape.inputs[:] = [replace(i, bytes=i.bytes + 4 * shift) if i.name == "x" else i for i in tape.inputs]
    tape.batch_views[:] = [(n, (*r[:4], shift) if n == "x" else r) for n, r in tape.batch_views]
    return 8.0


def schedule(run: Run, at: int, pick: Random) -> float:
    """Each step has one of two programs."""
    for step in run.steps[2:]:
        if pick.getrandbits(1):
            op = where(step.tape, "tanh.default")
            step.tape.nodes[op] = step.tape.nodes[op]._replace(op="sin.default")
    return len(run.steps) - 2.0
