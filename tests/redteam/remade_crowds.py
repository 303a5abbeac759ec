"""Many choices of one kind in a run that is made again: in one step, or in each of many steps."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

from redteam.remade import Run
from redteam.remade_edits import WORD, Mutation, append, bound_to, refer, valued
from redteam.remade_mutations import edit
from redteam.remade_programs import inserted, schedule

from weighbridge.transcript.tape import Node, Tape

# -- many choices of one kind in one step: the first has paid for what is new about them -------------------------------

MANY = 24


def _of(tape: Tape, state: str, size: tuple[int, ...], strides: tuple[int, ...], start: int = 0) -> int:
    slot = next(item.slot for item in tape.inputs if item.name == state)
    return refer(tape, (slot, "f32", size, strides, start))


def offsets(run: Run, at: int, pick: Random) -> float:
    """Each time, something else among the weights is added to a bias."""
    step = run.steps[at]
    bias = bound_to(step.tape, "model.0.bias")
    for _ in range(MANY):
        read = _of(step.tape, "model.0.weight", (6,), (1,), pick.randrange(256))
        append(step, Node("add_.Tensor", (("t", bias), ("t", read)), {}, (bias,)))
    return MANY * 8.0


def operands(run: Run, at: int, pick: Random) -> float:
    """Each time, one of the same four tensors is added to a bias."""
    step = run.steps[at]
    bias = bound_to(step.tape, "model.0.bias")
    there = [_of(step.tape, "model.0.weight", (6,), (1,), 6 * place) for place in range(4)]
    for _ in range(MANY):
        append(step, Node("add_.Tensor", (("t", bias), ("t", pick.choice(there))), {}, (bias,)))
    return MANY * 2.0


def operations(run: Run, at: int, pick: Random) -> float:
    """Each time, one of eight functions of a bias."""
    step = run.steps[at]
    bias = bound_to(step.tape, "model.0.bias")
    for _ in range(MANY):
        op = pick.choice(["sin_", "cos_", "tanh_", "sigmoid_", "relu_", "neg_", "atan_", "erf_"])
        append(step, Node(f"{op}.default", (("t", bias),), {}, (bias,)))
    return MANY * 3.0


def sizes(run: Run, at: int, pick: Random) -> float:
    """Each time, as many of the weights change sign as is chosen."""
    step = run.steps[at]
    for _ in range(MANY):
        some = _of(step.tape, "model.0.weight", (1 + pick.randrange(256),), (1,))
        append(step, Node("neg_.default", (("t", some),), {}, (some,)))
    return MANY * 8.0


def strides(run: Run, at: int, pick: Random) -> float:
    """Each time, four of the weights change sign, as far from each other as is chosen."""
    step = run.steps[at]
    for _ in range(MANY):
        some = _of(step.tape, "model.0.weight", (4,), (1 + pick.randrange(64),))
        append(step, Node("neg_.default", (("t", some),), {}, (some,)))
    return MANY * 6.0


def numbers(run: Run, at: int, pick: Random) -> float:
    """Each time, a number is added to a bias."""
    for _ in range(MANY):
        inserted(run, at, pick)
    return MANY * float(WORD)


def few_numbers(run: Run, at: int, pick: Random) -> float:
    """Each time, one of eight numbers is added to a bias."""
    step = run.steps[at]
    bias = bound_to(step.tape, "model.0.bias")
    for _ in range(MANY):
        place = ("v", step.tape.values)
        append(step, Node("add_.Scalar", (("t", bias), place), {}, (bias,)), pick.randrange(8) / 8)
    return MANY * 3.0


def generators(run: Run, at: int, pick: Random) -> float:
    """Each time, one of 256 generators fills a bias; all of them begin where new ones do."""
    step, drawn = run.steps[at], dict[int, int]()
    bias = bound_to(step.tape, "model.0.bias")
    for _ in range(MANY):
        number, place = 3 + pick.randrange(256), ("v", step.tape.values)
        draw = number, drawn.get(number, 0)
        drawn[number] = draw[1] + 1
        append(step, Node("bernoulli_.float", (("t", bias), place), {}, (bias,), draw=draw), 0.5)
    step.record = replace(step.record, rng={**step.record.rng, **{str(n): (0, 1) for n in drawn}})
    return MANY * 8.0


def draws(run: Run, at: int, pick: Random) -> float:
    """Each time, a generator is seeded anew and fills a bias."""
    step = run.steps[at]
    bias = bound_to(step.tape, "model.0.bias")
    for _ in range(MANY):
        node = Node("bernoulli_.float", (("t", bias), ("v", step.tape.values)), {}, (bias,))
        append(step, node._replace(draw=(0, 1 + pick.getrandbits(16))), 0.5)
    return MANY * 16.0


def hosts(run: Run, at: int, pick: Random) -> float:
    """Eight weights are read, and each time one of them, or 0, is added to a bias, as a number of the host's."""
    step = run.steps[at]
    tape, before, seen, named = step.tape, step.told, list[Any](), dict[int, int]()
    for place in range(8):
        append(
            step, Node("_local_scalar_dense.default", (("t", _of(tape, "model.0.weight", (), (), place)),), {}, (None,))
        )
    tape.hosts += 8
    bias = bound_to(tape, "model.0.bias")
    for _ in range(MANY):
        named[tape.values] = pick.randrange(9)
        append(step, Node("add_.Scalar", (("t", bias), ("v", tape.values)), {}, (bias,)), 0.0)

    def told(values: list[Any], host: Any) -> None:
        seen.append(host)
        if len(seen) == 1:
            before(values, host)
        for position, which in named.items() if len(seen) == 9 else ():
            values[position] = seen[which] if which else 0.0

    step.told = told
    step.record = replace(step.record, host=[0.0] * 9)
    return MANY * math.log2(9)


CROWDS: tuple[Mutation, ...] = (
    offsets, operands, operations, sizes, strides, numbers, few_numbers, generators, draws, hosts,
)  # fmt: skip
"""Mutations of one step that choose many times."""


# -- a choice in each of many steps ------------------------------------------------------------------------------------

STEPS = 28


def _longer(run: Run) -> None:
    """Goes on with the last batch; the learning rate follows its formula."""
    run.data = None
    last = run.steps[-1]
    for t in range(len(run.steps), STEPS + 1):
        step = last.copied()
        step.record = replace(
            step.record, values=[-0.1 / t if type(v) is float and v < 0 else v for v in step.record.values]
        )
        run.steps.append(step)


def longer(run: Run, at: int, pick: Random) -> float:
    """A longer run, that chooses nothing more than its data."""
    _longer(run)
    return 0.0


def programs(run: Run, at: int, pick: Random) -> float:
    """Each step has one of two programs."""
    _longer(run)
    return schedule(run, at, pick)


def edits(run: Run, at: int, pick: Random) -> float:
    """Before each step, a bias changes its sign, or does not."""
    _longer(run)
    for number in range(STEPS, 3, -1):
        if pick.getrandbits(1):
            edit(run, number, pick)
            valued(run.steps[number], 0, 0.125)
    return STEPS - 3.0


def seeds(run: Run, at: int, pick: Random) -> float:
    """A generator is seeded with a small number before each step."""
    _longer(run)
    for step in run.steps[4:]:
        step.starts["2"] = pick.randrange(256)
    return (STEPS - 3) * 8.0


ACROSS: tuple[tuple[Mutation, str], ...] = ((programs, "schedule"), (edits, "edits"), (seeds, "generators"))
"""Mutations that choose in each of many steps, with the channel that counts it."""
