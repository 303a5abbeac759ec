"""Tapes that a hostile Prover might write: recorded ones with changes.

Every choice comes from a list of integers: hypothesis can shrink what it finds, and a long run can draw at random.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weighbridge.core.errors import WeighbridgeError
from weighbridge.numerics.rounding import rounding_log
from weighbridge.numerics.rule_table import RULES
from weighbridge.program.operands import resolve
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import Checkpoint
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import DTYPES, MEMORY_FORMATS, Tape, references


class Choices:
    """A stream of decisions; when the list is used up, every further one is the first possibility."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers, self._at = numbers, 0

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        if self._at >= len(self._numbers) or n <= 1:
            return 0
        self._at += 1
        return self._numbers[self._at - 1] % n

    def of(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return options[self.below(len(options))]

    def odds(self, one_in: int) -> bool:
        """True once in so many times."""
        return self.below(one_in) == one_in - 1


@dataclass
class Case:
    """What the executor is given for one step."""

    tape: Tape
    record: StepRecord
    log: bytes
    batch: dict[str, Tensor]
    free: dict[str, Tensor]
    checkpoint: Checkpoint | None
    seed: int


def steps_of(transcript: Transcript) -> list[Case]:
    """The steps of a run that has a checkpoint before each."""
    cases = []
    for step in range(1, transcript.steps):
        record = transcript.step(step)
        cases.append(
            Case(
                Tape.decode(transcript.tape(record.tape)), record,
                transcript.rounding(step), dict(transcript.batch(step)), dict(transcript.undeclared(step)),
                transcript.checkpoint(step), int(transcript.draft["seed"]),
            )
        )  # fmt: skip
    return cases


SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 16, 1 << 12, 1 << 31, 1 << 40, (1 << 61) - 1)
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    -2,
    5,
    8,
    100,
    -100,
    1 << 20,
    1 << 31,
    -(1 << 31),
    1 << 40,
    1 << 62,
    (1 << 63) - 1,
    -(1 << 63),
)
SCALARS = (0, 1, -1, 2, 0.5, 1e-5, -0.0, 1e30, 1e300, math.nan, math.inf, -math.inf, True, False, 1 << 62, -7)


@cache
def overloads() -> list[str]:
    """Every overload that may stand on a tape, in place and `out` forms too."""
    names = set()
    for key in RULES:
        name = key.partition(".")[0]
        for packet in (getattr(torch.ops.aten, each, None) for each in (name, f"{name}_")):
            names |= {f"{packet.__name__}.{o}" for o in packet.overloads()} if packet is not None else set()
    return sorted(name for name in names if _allowed(name))


def _allowed(name: str) -> bool:
    try:
        resolve(name)
    except WeighbridgeError:
        return False
    return True


def _operands(tape: Tape) -> list[tuple[int, int]]:
    """Places of tensors among operands: (node, position)."""
    return [(n, i) for n, node in enumerate(tape.nodes) for i, a in enumerate(node.args) if references((a,))]


def _change(tape: Tape, at: int, **fields: Any) -> None:
    tape.nodes[at] = tape.nodes[at]._replace(**fields)


def _set_operand(tape: Tape, at: int, place: int, value: Any) -> None:
    args = list(tape.nodes[at].args)
    args[place] = value
    _change(tape, at, args=tuple(args))


def _swap_operands(case: Case, pick: Choices) -> None:
    (n, i), (m, j) = pick.of(_operands(case.tape)), pick.of(_operands(case.tape))
    first, second = case.tape.nodes[n].args[i], case.tape.nodes[m].args[j]
    _set_operand(case.tape, n, i, second)
    _set_operand(case.tape, m, j, first)


def _other_reference(case: Case, pick: Choices) -> None:
    n, i = pick.of(_operands(case.tape))
    _set_operand(case.tape, n, i, ("t", pick.below(len(case.tape.refs) + 1)))


def _odd_reference(case: Case, pick: Choices) -> None:
    """A tensor of another shape, stride, offset or type over the same memory, everywhere or for one operand."""
    at = pick.below(len(case.tape.refs))
    slot, dtype, size, stride, offset = case.tape.refs[at]
    kind = pick.below(6)
    if kind == 0:
        dtype = pick.of(list(DTYPES))
    elif kind == 1 and size:
        place = pick.below(len(size))
        size = (*size[:place], pick.of(SIZES), *size[place + 1 :])
    elif kind == 2 and size:
        place = pick.below(len(size))
        stride = (*stride[:place], pick.of(SIZES), *stride[place + 1 :])
    elif kind == 3:
        offset = pick.of(SIZES)
    elif kind == 4:
        size, stride = (*size, pick.of(SIZES)), (*stride, pick.of((0, 1)))
    else:
        size, stride = size[1:], stride[1:]
    if pick.odds(2):
        case.tape.refs[at] = (slot, dtype, size, stride, offset)
    else:
        case.tape.refs.append((slot, dtype, size, stride, offset))
        users = [(n, i) for n, i in _operands(case.tape) if case.tape.nodes[n].args[i] == ("t", at)]
        if users:
            at, place = pick.of(users)
            _set_operand(case.tape, at, place, ("t", len(case.tape.refs) - 1))


def _other_operation(case: Case, pick: Choices) -> None:
    name = "set_.source_Storage" if pick.odds(20) else pick.of(overloads())
    _change(case.tape, pick.below(len(case.tape.nodes)), op=name)


def _other_number(case: Case, pick: Choices) -> None:
    """Another integer among the operands of one operation, in lists too."""
    at = pick.below(len(case.tape.nodes))
    node = case.tape.nodes[at]

    def changed(value: Any) -> Any:
        if type(value) is int and pick.odds(2):
            return pick.of(NUMBERS)
        if isinstance(value, tuple) and value and value[0] == "l":
            items = [changed(v) for v in value[1]]
            if pick.odds(4):
                items = items[:-1] if pick.odds(2) else [*items, pick.of(NUMBERS)]
            return ("l", tuple(items))
        return value

    _change(case.tape, at, args=tuple(map(changed, node.args)), kwargs={k: changed(v) for k, v in node.kwargs.items()})


def _operand_of_another_kind(case: Case, pick: Choices) -> None:
    at = pick.below(len(case.tape.nodes))
    args = list(case.tape.nodes[at].args)
    odd = (
        None, True, 3, ("s", "mean"), ("d", pick.of(list(DTYPES))), ("l", ()), ("l", (("t", 0), None)), ("v", 0),
        ("dev",), ("lay",), ("m", pick.of(list(MEMORY_FORMATS))), ("t", 0),
    )  # fmt: skip
    match pick.below(3):
        case 0 if args:
            args[pick.below(len(args))] = pick.of(odd)
        case 1:
            args.append(pick.of(odd))
        case _:
            args = args[:-1]
    _change(case.tape, at, args=tuple(args))


def _births_and_frees(case: Case, pick: Choices) -> None:
    tape = case.tape
    match pick.below(7):
        case 0 if tape.frees:
            tape.frees.pop(pick.below(len(tape.frees)))
        case 1 if tape.frees:
            at = pick.below(len(tape.frees))
            tape.frees[at] = (pick.below(len(tape.nodes) + 2), tape.frees[at][1])
        case 2:
            tape.frees.append((pick.below(len(tape.nodes) + 1), pick.below(len(tape.refs) + 1)))
        case 3 if tape.survivors:
            tape.survivors.pop(pick.below(len(tape.survivors)))
        case 4:
            tape.survivors.append((pick.below(len(tape.refs)), pick.of([i.name for i in tape.inputs] or ["x"])))
        case 5:
            at = pick.below(len(tape.nodes))
            births = tape.nodes[at].births
            _change(tape, at, births=births[1:] if births else ((pick.below(len(tape.refs)), pick.of(SIZES)),))
        case _:
            at = pick.below(len(tape.nodes))
            _change(tape, at, births=tuple((slot, pick.of(SIZES)) for slot, _ in tape.nodes[at].births))


def _nodes(case: Case, pick: Choices) -> None:
    nodes = case.tape.nodes
    at = pick.below(len(nodes))
    match pick.below(5):
        case 0:
            del nodes[at:]
        case 1:
            del nodes[at]
        case 2:
            nodes.insert(at, nodes[pick.below(len(nodes))])
        case 3:
            other = pick.below(len(nodes))
            nodes[at], nodes[other] = nodes[other], nodes[at]
        case _:
            nodes[at] = nodes[at]._replace(outputs=(*nodes[at].outputs[1:], pick.of((None, 0, len(case.tape.refs)))))


def _inputs(case: Case, pick: Choices) -> None:
    inputs = case.tape.inputs
    if not inputs:
        return
    at = pick.below(len(inputs))
    other = inputs[pick.below(len(inputs))]
    match pick.below(5):
        case 0:
            inputs.pop(at)
        case 1:
            inputs[at] = replace(inputs[at], bytes=pick.of(SIZES))
        case 2:
            inputs[at] = replace(inputs[at], origin=pick.of(["state", "batch", "free", "dropped", "moon"]))
        case 3:
            names = [other.name, "~1/3", "~0/0", "~9/9", "kept/1/1", "nobody", ""]
            inputs[at] = replace(inputs[at], name=pick.of(names))
        case _:
            inputs[at] = replace(inputs[at], slot=other.slot)


def _values(case: Case, pick: Choices) -> None:
    fields: dict[str, Any] = {}
    match pick.below(6):
        case 0 if case.record.values:
            values: list[Any] = list(case.record.values)
            values[pick.below(len(values))] = pick.of(SCALARS)
            fields["values"] = values
        case 1:
            fields["values"] = [*case.record.values, 0.5][: pick.below(len(case.record.values) + 2)]
        case 2:
            fields["host"] = [pick.of(SCALARS) for _ in case.record.host] + ([1] if pick.odds(2) else [])
        case 3:
            fields["rng"] = pick.of([{}, {"0": (0, 1)}, {"0": ((1 << 64) - 1, 0), "x": (1, 2)}])
        case 4:
            fields["checksums"] = case.record.checksums[: 8 * pick.below(len(case.record.checksums) // 8 + 1)]
        case _:
            at = pick.below(len(case.tape.nodes))
            draw = pick.of([None, (0, 0), (0, -5), (7, 1), ((1 << 61), -(1 << 61)), (0, 1 << 61)])
            _change(case.tape, at, draw=draw)
    case.record = replace(case.record, **fields)


def _tensors(case: Case, pick: Choices) -> None:
    """Odd contents or shapes of what enters: batch, undeclared tensors, state."""
    tables: list[dict[str, Tensor]] = [t for t in (case.batch, case.free) if t]
    if case.checkpoint is not None and case.checkpoint.storages:
        case.checkpoint = replace(case.checkpoint, storages=dict(case.checkpoint.storages))
        tables.append(case.checkpoint.storages)
    if not tables:
        return
    table = pick.of(tables)
    name = pick.of(sorted(table))
    x = table[name].clone()
    match pick.below(5):
        case 0:
            x = x.reshape(-1)[: pick.below(x.numel() + 1)]
        case 1 if x.is_floating_point():
            x.fill_(pick.of([float("nan"), float("inf"), -1e38, 0.0, 1e-45]))
        case 2 if not x.is_floating_point() and x.dtype != torch.bool:
            limits = torch.iinfo(x.dtype)
            x.reshape(-1)[: 1 + pick.below(max(x.numel(), 1))] = pick.of([limits.max, limits.min, 0, limits.max // 2])
        case 3 if case.checkpoint is None or table is not case.checkpoint.storages:  # whose storages are bytes
            x = x.to(pick.of(list(DTYPES.values())))
        case _:
            table.pop(name)
            return
    table[name] = x


def _log(case: Case, pick: Choices) -> None:
    """Other bytes, or an entry more or less where the entries are well-formed."""
    if pick.odds(2):
        log = bytearray(case.log)
        for _ in range(1 + pick.below(3)):
            at = pick.below(len(log) + 1)
            if pick.odds(2):
                log[at : at + 1] = bytes([pick.below(256)])
            else:
                del log[at : at + 1 + pick.below(8)]
        case.log = bytes(log)
        return
    try:
        entries = rounding_log.decode(case.log, max_entries=1 << 20)
    except WeighbridgeError:
        return  # it was changed before
    width = 1 + pick.below(31)
    odd = rounding_log.OpEntries(
        pick.below(len(case.tape.nodes) + 1), pick.below(2), np.array([pick.of(SIZES[:10])], dtype=np.int64),
        np.array([width], dtype=np.uint8), np.array([pick.below(1 << width)], dtype=np.uint64),
    )  # fmt: skip
    entries = [e for e in entries if (e.op, e.output) != (odd.op, odd.output)]
    case.log = rounding_log.encode(
        sorted([*entries, odd] if pick.below(4) else entries[1:], key=lambda e: (e.op, e.output))
    )


Mutation = Callable[[Case, Choices], None]

MUTATIONS: tuple[Mutation, ...] = (
    _swap_operands, _other_reference, _odd_reference, _other_operation, _other_number, _operand_of_another_kind,
    _births_and_frees, _nodes, _inputs, _values, _tensors, _log,
)  # fmt: skip

CONTENTS: tuple[Mutation, ...] = (_values, _tensors, _log)
"""Those that leave the tape as it is, but for what a draw says of itself."""


def mutated(original: Case, pick: Choices) -> Case:
    """A recorded step with one to three changes."""
    case = replace(original, tape=copy.deepcopy(original.tape), batch=dict(original.batch), free=dict(original.free))
    for _ in range(1 + pick.below(3)):
        if not case.tape.nodes:
            break
        pick.of(MUTATIONS)(case, pick)
    return case
