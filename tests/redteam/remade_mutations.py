"""What a Prover can choose of a run that it makes again: each mutation picks one of many, and says how many bits.

A mutation changes what stands in a run's steps or around them; `remade` then executes everything again. The bits are
the entropy of the mutation's own choice, not an estimate: it picks evenly.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import numpy as np
import torch
from redteam.remade import Run, Step
from redteam.remade_edits import WORD, Mutation, append, bound_to, chosen, insert, operand, refer, valued, where
from redteam.remade_programs import (
    batch_layout,
    dtype,
    free_moved,
    inserted,
    offset,
    other_operand,
    other_operation,
    removed,
    schedule,
    size,
    stride,
    survivor,
)
from torch import Tensor

from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.transcript.state import Checkpoint
from weighbridge.transcript.tape import Input, Node, Tape

# -- numbers -----------------------------------------------------------------------------------------------------------


def literal(run: Run, at: int, pick: Random) -> float:
    """The class that the loss ignores: an integer among the operands."""
    tape = run.steps[at].tape
    for op in (where(tape, "nll_loss_forward.default"), where(tape, "nll_loss_backward.default")):
        operand(tape, op, tape.nodes[op].args.index(-100), -(1 << 20) - pick.getrandbits(WORD))
    return 2 * WORD


def value_once(run: Run, at: int, pick: Random) -> float:
    """How strong the noise is, in one step."""
    valued(run.steps[at], 0, chosen(pick))
    return WORD


def value_always(run: Run, at: int, pick: Random) -> float:
    """How strong the noise is, in all steps."""
    value = chosen(pick)
    for step in run.steps[1:]:
        valued(step, 0, value)
    return WORD


def value_of_another_type(run: Run, at: int, pick: Random) -> float:
    """An integer among the values as a float or a boolean, which are equal numbers."""
    step = run.steps[at]
    valued(step, next(i for i, v in enumerate(step.record.values) if type(v) is int), pick.choice([1.0, True]))
    return 1.0


def formula(run: Run, at: int, pick: Random) -> float:
    """The text of the learning rate's formula, and with it all learning rates."""
    rate = 0.05 + pick.randrange(10**8) / 10**9
    text = f"{rate:.9f}"
    run.draft["formulas"] = [[n, f"-{text} / t" if n == "descent" else t] for n, t in run.draft["formulas"]]
    for number, step in enumerate(run.steps[1:], 1):
        for position, value in enumerate(step.record.values):
            if type(value) is float and value < 0:
                valued(step, position, -float(text) / number)
    return math.log2(10**8)


def initial_range(run: Run, at: int, pick: Random) -> float:
    """Where the initialisation's noise begins."""
    valued(run.steps[0], 0, -chosen(pick))
    return WORD


# -- randomness --------------------------------------------------------------------------------------------------------


def counter(run: Run, at: int, pick: Random) -> float:
    """A generator is seeded before a step."""
    run.steps[at].starts["2"] = pick.getrandbits(WORD)
    return WORD


def counter_claimed(run: Run, at: int, pick: Random) -> float:
    """The record says that a generator was elsewhere than where it drew."""
    start = pick.getrandbits(WORD)
    run.steps[at].claimed["rng"] = run.steps[at].record.rng | {"2": (start, start + 1)}
    return WORD


def seeded_within(run: Run, at: int, pick: Random) -> float:
    """A generator is seeded within a step, and draws once more."""
    tape = run.steps[at].tape
    op = where(tape, "bernoulli_.float")
    node = tape.nodes[op]
    insert(tape, op + 1, node._replace(draw=(0, 1 + pick.getrandbits(WORD))))
    return WORD


def generator(run: Run, at: int, pick: Random) -> float:
    """Another generator draws the noise: its number is chosen."""
    step, number = run.steps[at], 3 + pick.randrange(256)
    op = where(step.tape, "randn.generator")
    step.tape.nodes[op] = step.tape.nodes[op]._replace(draw=(number, 0))
    rng = {name: span for name, span in step.record.rng.items() if name != "2"}
    step.record = replace(step.record, rng={**rng, str(number): (0, 1)})
    return 8.0


def seed(run: Run, at: int, pick: Random) -> float:
    """The run's seed."""
    run.draft["seed"] = pick.getrandbits(63)
    return 63.0


# -- what enters -------------------------------------------------------------------------------------------------------


def undeclared(run: Run, at: int, pick: Random) -> float:
    """A tensor without an origin is added to a bias."""
    step = run.steps[at]
    raw = Tensor(np.array([chosen(pick) for _ in range(6)], dtype=np.float32))
    return _added(step, "extra", raw, 6 * 20.0)


def _added(step: Step, name: str, raw: Tensor, bits: float) -> float:
    slot = 1 + max(ref[0] for ref in step.tape.refs)
    step.tape.inputs.append(Input(slot, raw.numel() * raw.itemsize, "free", name))
    step.undeclared[name] = raw
    ref = bound_to(step.tape, "model.0.bias")
    other = refer(step.tape, (slot, "f32", (6,), (1,), 0))
    append(step, Node("add_.Tensor", (("t", ref), ("t", other)), {}, (ref,)))
    return bits


def undeclared_number(run: Run, at: int, pick: Random) -> float:
    """A tensor of one number without an origin is added to a bias, in every step the same."""
    number = torch.tensor([chosen(pick)], dtype=torch.float64)
    for step in run.steps[1:]:
        tape = step.tape
        slot = 1 + max(ref[0] for ref in tape.refs)
        tape.inputs.append(Input(slot, 8, "free", "number"))
        step.undeclared["number"] = number
        ref, other = bound_to(tape, "model.0.bias"), refer(tape, (slot, "f64", (), (), 0))
        append(step, Node("add_.Tensor", (("t", ref), ("t", other)), {}, (ref,)))
    return WORD


def nan_payload(run: Run, at: int, pick: Random) -> float:
    """An undeclared NaN, whose payload is read as two integers and added to a bias."""
    step = run.steps[at]
    tape, slot = step.tape, 1 + max(ref[0] for ref in step.tape.refs)
    bits = 0x7FF8_0000_0000_0000 | pick.getrandbits(51)
    tape.inputs.append(Input(slot, 8, "free", "odd"))
    step.undeclared["odd"] = torch.tensor([bits], dtype=torch.int64).view(torch.float64)
    ref = refer(tape, (next(i.slot for i in tape.inputs if i.name == "model.0.bias"), "f32", (2,), (1,), 0))
    whole, low = refer(tape, (slot, "f64", (1,), (1,), 0)), refer(tape, (slot, "i32", (2,), (1,), 0))
    append(step, Node("view.dtype", (("t", whole), ("d", "i32")), {}, (low,)))
    made = refer(tape, (slot + 1, "f32", (2,), (1,), 0))
    append(step, Node("_to_copy.default", (("t", low),), {"dtype": ("d", "f32")}, (made,), ((slot + 1, 8),)))
    place = ("v", tape.values)
    append(step, Node("add_.Tensor", (("t", ref), ("t", made)), {"alpha": place}, (ref,)), 2.0**-40)
    return 51.0


def edit(run: Run, at: int, pick: Random) -> float:
    """State is changed between steps."""
    tape = Tape(inputs=[Input(0, 24, "state", "model.0.bias")], refs=[(0, "f32", (6,), (1,), 0)], values=1)
    tape.nodes.append(Node("add_.Scalar", (("t", 0), ("v", 0)), {}, (0,)))
    record = replace(run.steps[at].record, kind="edit", values=[chosen(pick)], host=[], rng={})
    run.steps.insert(at, Step(tape, record, {}, {}))
    return WORD


def batch(run: Run, at: int, pick: Random) -> float:
    """Pixels of a run that commits to no data."""
    run.data = None
    pixels = torch.tensor([chosen(pick) for _ in range(64)])
    run.steps[at].batch["x"] = torch.cat([pixels[None], run.steps[at].batch["x"][1:]])
    return 64 * 20.0


def order(run: Run, at: int, pick: Random) -> float:
    """The order of the rows in a run that commits to no data."""
    run.data = None
    rows = list(range(8))
    pick.shuffle(rows)
    run.steps[at].batch = {name: each[rows] for name, each in run.steps[at].batch.items()}
    return math.log2(math.factorial(8))


def initial_weights(run: Run, at: int, pick: Random) -> float:
    """Weights that were there before the run."""
    return _begun_with(run, {}, pick)


def optimizer_state(run: Run, at: int, pick: Random) -> float:
    """Momentum that was there before the run: every step has the program of those with momentum."""
    held = {name: data for name, data in run.checkpoints[3].storages.items() if name.startswith("optimizer")}
    first, later = run.steps[1], run.steps[2].copied()
    values = [-0.1 if type(v) is float and v < 0 else v for v in later.record.values]
    hosts = {v for v in later.record.values if type(v) is float and v not in run.steps[3].record.values and v > 0}
    values = [1.0 if v in hosts else v for v in values]
    run.steps[1] = replace(later, batch=first.batch, record=replace(first.record, values=values))
    return _begun_with(run, held, pick)


def _begun_with(run: Run, held: dict[str, Tensor], pick: Random) -> float:
    like = run.checkpoints[1]
    bias = torch.tensor([chosen(pick) for _ in range(6)]).view(torch.uint8)
    run.steps[0].tape = Tape()
    run.steps[0].record = replace(run.steps[0].record, values=[], rng={})
    storages = {**like.storages, **held, "model.0.bias": bias}
    run.checkpoints[1] = Checkpoint(1, storages, like.views, {})
    return 6 * 20.0


def stopping(run: Run, at: int, pick: Random) -> float:
    """The run ends where the Prover likes it best: after 3 or 4 steps."""
    if pick.getrandbits(1):
        del run.steps[-1]
    return 1.0


# -- what records say of an execution ----------------------------------------------------------------------------------


def overruled(run: Run, at: int, pick: Random) -> float:
    """The log rounds an element that no device could have rounded so."""
    asked = iter([pick.randrange(8)])

    def logged(entries: OpEntries | None, wide: Tensor, bound: Bound) -> OpEntries | None:
        if wide.numel() < 8 or (place := next(asked, None)) is None:
            return entries
        up = np.nextafter(np.float32(float(wide.reshape(-1)[place])), np.float32(np.inf))
        return OpEntries(
            0, 0, np.array([place]), np.zeros(1, dtype=np.uint8), np.array([up]).view(np.uint32).astype(np.uint64)
        )

    run.steps[at].logged = logged
    return 3.0


def host(run: Run, at: int, pick: Random) -> float:
    """The record says that the program read another number."""
    run.steps[at].claimed["host"] = [chosen(pick)]
    return WORD


ONCE: tuple[Mutation, ...] = (
    literal, value_once, value_of_another_type, offset, stride, size, dtype, other_operand, other_operation, inserted,
    removed, free_moved, batch_layout, counter, counter_claimed, seeded_within, generator, undeclared, nan_payload,
    edit, overruled, host,
)  # fmt: skip
"""Mutations of one step."""

WHOLE: tuple[Mutation, ...] = (
    value_always, formula, initial_range, survivor, schedule, undeclared_number, initial_weights, optimizer_state,
)  # fmt: skip
"""Mutations of the whole run."""

STANDING: tuple[tuple[Mutation, str], ...] = (
    (seed, "selection"), (batch, "batch"), (order, "batch"), (stopping, "selection"),
)  # fmt: skip
"""Mutations of what every run chooses, with the channel that counts it in every run."""

ALONE: tuple[Mutation, ...] = (counter_claimed, host, overruled, survivor)
"""Those that no second one can hide; and a name, which is charged nothing and, as is tested alone, moves no weight."""
