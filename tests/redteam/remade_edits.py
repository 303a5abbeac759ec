"""How a run that is made again is changed: references, operands, operations and values of its steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from redteam.remade import Run, Step

from weighbridge.transcript.tape import Node, Ref, Tape

WORD = 40
"""Bits of a number that is chosen freely."""

Mutation = Callable[[Run, int, Random], float]
"""Changes a run, at a step if it is about one; returns log2 of how many changes it picked from."""


def where(tape: Tape, op: str, last: bool = False) -> int:
    """The first operation of a name, or the last one."""
    found = [index for index, node in enumerate(tape.nodes) if node.op == op]
    return found[-1] if last else found[0]


def bound_to(tape: Tape, name: str, dtype: str = "f32", size: tuple[int, ...] = (6,)) -> int:
    """A new reference to the beginning of an input."""
    slot = next(item.slot for item in tape.inputs if item.name == name)
    strides = tuple(math.prod(size[at + 1 :]) for at in range(len(size)))
    return refer(tape, (slot, dtype, size, strides, 0))


def refer(tape: Tape, ref: Ref) -> int:
    """A new reference."""
    tape.refs.append(ref)
    return len(tape.refs) - 1


def operand(tape: Tape, op: int, place: int, value: Any) -> None:
    """Changes an operand."""
    args = list(tape.nodes[op].args)
    args[place] = value
    tape.nodes[op] = tape.nodes[op]._replace(args=tuple(args))


def insert(tape: Tape, op: int, node: Node) -> None:
    """Inserts an operation; storages die after the same operations as before."""
    tape.nodes.insert(op, node)
    tape.frees[:] = [(at + (at > op or at == len(tape.nodes) - 1), slot) for at, slot in tape.frees]


def append(step: Step, node: Node, *values: float) -> None:
    """Appends an operation, before what dies at the end."""
    insert(step.tape, len(step.tape.nodes), node)
    step.tape.values += len(values)
    step.record = replace(step.record, values=[*step.record.values, *values])


def valued(step: Step, position: int, value: Any) -> None:
    """Changes a value."""
    values = list(step.record.values)
    values[position] = value
    step.record = replace(step.record, values=values)


def chosen(pick: Random) -> float:
    """One of 2^40 numbers from 0.05 to 0.15."""
    return 0.05 + 0.1 * pick.getrandbits(WORD) / (1 << WORD)


def alive(tape: Tape, op: int) -> set[int]:
    """Storages that exist when an operation runs."""
    slots = {item.slot for item in tape.inputs if item.origin != "dropped"}
    slots |= {slot for node in tape.nodes[:op] for slot, _ in node.births}
    return slots - {slot for at, slot in tape.frees if at <= op}
