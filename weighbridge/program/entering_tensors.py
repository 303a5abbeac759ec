"""Says in words what undeclared tensors and values are: by the tape, and where they came from by the Prover's word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weighbridge.program.origins import TapeValues
from weighbridge.transcript.entry_notes import EntryNote, printable
from weighbridge.transcript.tape import Node, Tape, references

_SHOWN = 3


def entering(tape: Tape, notes: list[EntryNote], found: TapeValues) -> list[str]:
    """Returns a line for each of the first undeclared tensors of a tape.

    Type, shape and operation are what ran. Names are the Prover's, so they are quoted, and what follows `the Prover
    says` is nothing but that.

    Args:
        tape: The tape.
        notes: Of the transcript.
        found: What entered the tape.
    """
    said = {note.name: replace(note, name="it") for note in notes if note.step == found.first}
    slots = {i.name: i.slot for i in tape.inputs if i.origin == "free"}
    lines = []
    for name in list(found.undeclared_tensors)[:_SHOWN]:
        line = f"{printable(name)!r}{_used(tape, slots[name]) if name in slots else ''}"
        lines.append(line if name not in said else f"{line} (the Prover says: {said[name]})")
    more = len(found.undeclared_tensors) - _SHOWN
    return [*lines, *([f"and {more} more"] if more > 0 else [])]


def values_entering(tape: Tape, positions: list[int], found: TapeValues) -> list[str]:
    """Returns a line for each of the first undeclared values of a tape: which operation uses it, in which module.

    Args:
        tape: The tape.
        positions: Where they are among the values, then among the undeclared tensors of one number.
        found: What entered the tape.
    """
    small = sorted(i.name for i in tape.inputs if i.origin == "free" and i.name not in found.undeclared_tensors)
    slots = {i.name: i.slot for i in tape.inputs if i.origin == "free"}
    lines = []
    for position in positions[:_SHOWN]:
        first = found.values[position] if position < len(found.values) else None
        value = f"{first:.6g}" if isinstance(first, float) else printable(str(first))
        if position >= tape.values:
            name = small[position - tape.values] if position - tape.values < len(small) else ""
            lines.append(f"{printable(name)!r}{_used(tape, slots[name]) if name else ''}, {value} at first")
            continue
        for number, node in enumerate(tape.nodes):
            if _takes(position, (node.args, tuple(node.kwargs.values()))):
                lines.append(f"{value} at first, in operation {number} ({printable(node.op)}){_module(tape, node)}")
                break
    more = len(positions) - len(lines)
    return [*lines, *([f"and {more} more"] if more > 0 else [])]


def _takes(position: int, operand: Any) -> bool:
    """True if an encoded operand is the value at a position, or has it as a part."""
    if not isinstance(operand, tuple):
        return False
    return operand == ("v", position) or any(_takes(position, each) for each in operand)


def _module(tape: Tape, node: Node) -> str:
    return "" if node.path is None else f" in {printable(tape.paths[node.path])!r}"


def _used(tape: Tape, slot: int) -> str:
    """Describes the first use of a slot."""
    for number, node in enumerate(tape.nodes):
        for index in references((node.args, tuple(node.kwargs.values()))):
            if tape.refs[index][0] == slot:
                _, dtype, size, *_ = tape.refs[index]
                used = f"operation {number} ({printable(node.op)}){_module(tape, node)}"
                return f": {dtype} {list(size)[:8]}, used first by {used}"
    return ": used by no operation"
