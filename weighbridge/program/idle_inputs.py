"""Inputs of an initialisation from which nothing reaches what trains.

A program may try its model on a batch before it trains, or look at its data. What goes nowhere from there chooses
nothing. It may stay in memory, as what a variable still holds; that is no part of what the run has made, either. Nor is
what it leaves in statistics of batch norms that the training's own batches go into as well (`norm_statistics`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from weighbridge.core.errors import TapeError
from weighbridge.program.dataflow import flow
from weighbridge.program.norm_statistics import statistics
from weighbridge.program.own_tensors import returned
from weighbridge.program.tape_walk import is_kept
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape, absolute_name, references

_PINNED = ("clamp.Tensor", "clamp_.Tensor")
"""What is between equal bounds comes out as they are, unless it is NaN: so something of it may come out."""


def idle_slots(transcript: Transcript, tapes: Callable[[bytes], Tape]) -> frozenset[int]:
    """Returns the slots of the initialisation's inputs that no later step can depend on.

    There are none if the program gave anything to other ranks, ran an operation that is none of PyTorch's, clamped to
    tensors, or is too large to follow. Which operations ran, and with which whole numbers, may depend on any input;
    that is charged where programs are described.

    Args:
        transcript: A verified transcript.
        tapes: Returns the tape of a digest.

    Raises:
        TapeError: A tape names state that cannot be.
    """
    return frozenset(_idle(transcript, tapes)[0])


def idle_names(transcript: Transcript, tapes: Callable[[bytes], Tape]) -> frozenset[str]:
    """Returns the names of the batch's and of undeclared tensors of step 0 that lie on such slots only.

    Args, Raises: As for `idle_slots`.
    """
    idle, _, tape = _idle(transcript, tapes)
    return names_on(tape, idle)


def names_on(tape: Tape, on: Collection[int]) -> frozenset[str]:
    """Returns the names of the batch's and of undeclared tensors that lie on some slots only."""
    slots: dict[str, set[int]] = {}
    for name, ref in tape.batch_views:
        slots.setdefault(name, set()).add(ref[0])
    for item in tape.inputs:
        if item.origin == "free":
            slots.setdefault(item.name, set()).add(item.slot)
    return frozenset(name for name, own in slots.items() if own <= set(on))


def hides_flow(tape: Tape) -> bool:
    """Whether a tape has an operation by way of which anything may reach anything: none of PyTorch's, or a clamp."""
    return any("::" in node.op or node.op.startswith(_PINNED) for node in tape.nodes)


def idle_leftovers(transcript: Transcript, tapes: Callable[[bytes], Tape]) -> frozenset[str]:
    """Returns the names of the state that such inputs reach: statistics, and what no step uses and nothing attached.

    Args, Raises: As for `idle_slots`.
    """
    return frozenset(_idle(transcript, tapes)[1])


def _idle(transcript: Transcript, tapes: Callable[[bytes], Tape]) -> tuple[set[int], set[str], Tape]:
    """The slots of idle inputs, the unused leftovers that they reach, and the tape of step 0."""
    tape, used = Tape(), {storage for _, storage in returned(transcript).values()}
    known: dict[bytes, list[str]] = {}
    norms: dict[bytes, tuple[set[str], set[str]]] = {}
    changed, spoiled = set[str](), set(used)
    for record in transcript.records():
        if record.step == 0:
            tape = tapes(record.tape)
            continue
        if record.tape not in known:
            known[record.tape] = _used(tapes(record.tape))
            norms[record.tape] = _norms(tapes(record.tape))
        used.update(absolute_name(name, record.step) for name in known[record.tape])
        changed.update(absolute_name(name, record.step) for name in norms[record.tape][0])
        spoiled.update(absolute_name(name, record.step) for name in norms[record.tape][1])
    if hides_flow(tape):
        return set(), set(), tape
    try:
        followed = flow(tape, by_host=True)
    except TapeError:
        return set(), set(), tape
    reaches = {absolute_name(name, 0): bits for name, bits in followed.reaches.items()}
    if transcript.notes is not None:
        used.update(transcript.notes.weights)
        spoiled.update(transcript.notes.weights)
    unused = {name for name in reaches if _beside(name) and name not in used}
    kept = statistics(tape).changed
    unused |= {absolute_name(name, 0) for slot, name in tape.survivors if slot in kept} & (changed - spoiled)
    reached = 0
    for name in reaches.keys() - unused:
        reached |= reaches[name]
    idle = [(1 << index, item.slot) for index, item in enumerate(tape.inputs) if not reached >> index & 1]
    left = {name for name in unused if any(reaches[name] & bit for bit, _ in idle)}
    return {slot for _, slot in idle}, left, tape


def _used(tape: Tape) -> list[str]:
    """Names of leftovers that come into a step and are read, changed or named anew there."""
    slots = {tape.refs[r][0] for node in tape.nodes for r in references((node.args, tuple(node.kwargs.values())))}
    slots |= {slot for slot, _ in tape.survivors}
    return [item.name for item in tape.inputs if item.origin == "state" and _beside(item.name) and item.slot in slots]


def _norms(tape: Tape) -> tuple[set[str], set[str]]:
    """Names of state that batch norms of a step mix its batch into, and of state that anything else uses."""
    found = statistics(tape)
    used = {tape.refs[r][0] for node in tape.nodes for r in references((node.args, tuple(node.kwargs.values())))}
    entering = [(item.name, item.slot) for item in tape.inputs if item.origin == "state"]
    entering += [(name, slot) for slot, name in tape.survivors]
    changed = {name for name, slot in entering if slot in found.changed}
    return changed, {name for name, slot in entering if slot in used and slot not in found.alone}


def _beside(name: str) -> bool:
    """Whether state has a name that says that a variable of the program kept it, and no object that was attached."""
    return is_kept(name) or name.startswith("adopted/")
