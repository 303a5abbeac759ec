"""Hostile tapes that come as far as straight-line programs: each is executed twice, and both ways must agree.

A program is made of a tape that was executed completely, so the record is first made to fit what the tape gives. Then
two Executors, of which one may use programs, execute that step and, from the same state, one with hostile content.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from redteam.remade import Again, Step
from support.mutations import CONTENTS, Case, Choices

from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.executor import Executor
from weighbridge.execution.following import DifferenceError
from weighbridge.numerics.rounding.rounding_log import LogReader
from weighbridge.transcript.tape import Tape

Said = dict[str, Any]


def executed_twice(case: Case, pick: Choices, memory: int) -> tuple[str, bool]:
    """Executes a tape twice; returns the second outcome, as `fuzz_child.told`, and whether a program made it.

    Args:
        case: What is executed first; its record is made to fit.
        pick: Decides what becomes of the second execution.
        memory: Bytes that a tape may use.

    Raises:
        AssertionError: A program came to another outcome, state or count than its operations one by one.
        WeighbridgeError: The tape cannot be executed at all.
    """
    case.tape = Tape.decode(case.tape.encode())
    bare = pick.odds(3)
    first = _fitted(case, bare, memory)
    second = replace(first, tape=copy.deepcopy(first.tape), batch=dict(first.batch), free=dict(first.free))
    for _ in range(2 - pick.below(3)):
        pick.of(CONTENTS)(second, pick)
    second.tape = first.tape
    executors = [Executor("cpu", case.seed, memory) for _ in range(2)]
    executors[1].programs = False
    said: list[Said] = []
    for executor in executors:
        _execute(executor, first, bare)
        said.append(_outcome(executor, second, bare))
    assert said[0] == said[1], f"a program says {said[0]}, its operations {said[1]}"
    return str(said[1]["code"]), any(executors[0].made.values())


def _fitted(case: Case, bare: bool, memory: int) -> Case:
    """The step with the record that its tape gives; `bare` if it commits to its outputs in place of a log."""
    again = Again(case.seed)
    if case.checkpoint is not None:
        again.load(case.checkpoint)
    fields = again.step(case.record.step, Step(case.tape, case.record, case.batch, case.free), {})
    log = fields.pop("rounding")
    for name in ("batch", "undeclared"):
        fields.pop(name)
    fitted = replace(case, log=log, record=replace(case.record, rounding=bytes_digest(log), **fields))
    if bare:
        fitted.record = replace(fitted.record, outputs=bytes(32))
        try:
            _execute(Executor("cpu", case.seed, memory), fitted, bare)
        except DifferenceError as error:
            if error.details["operation"] != "outputs":
                raise
            fitted.record = replace(fitted.record, outputs=bytes.fromhex(error.details["found"]))
    return fitted


def _execute(executor: Executor, case: Case, bare: bool) -> Said:
    executor.state, executor.rng = {}, {}
    if case.checkpoint is not None:
        executor.load(case.checkpoint)
    log = None if bare else LogReader(case.log, max_entries=1 << 20)
    with torch.no_grad():
        context = executor.run(case.tape, bytes(32), case.record, log, case.batch, case.free)
    counts = ("followed", "rounded_elements", "checked", "hosts", "rng")
    return {"code": "match", "state": executor.state_digest(), **{name: getattr(context, name) for name in counts}}


def _outcome(executor: Executor, case: Case, bare: bool) -> Said:
    try:
        return _execute(executor, case, bare)
    except WeighbridgeError as error:
        inconclusive = "inconclusive" if error.details.get("inconclusive") else error.reason
        return {"code": inconclusive, "message": error.message, **error.details}
