"""State that came back: undeclared tensors that hold what state held earlier in the same run (`returned.cbor`).

A program that reads a saved model again takes tensors from outside, like any others. That they are the run's own is
proved: a step record names the digest of the whole state after it, so the table of all storages that gives this digest
says what each of them held. `weighbridge.program.own_tensors` compares. See docs/formats/transcript.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import DIGEST_SIZE, cbor
from weighbridge.core.errors import FormatError
from weighbridge.transcript.state import state_digest
from weighbridge.transcript.steps import MAX_STEPS
from weighbridge.transcript.tape import Tape, absolute_name, references

RETURNED = "returned.cbor"
"""Name of the file."""

_WORD = 1 << 64


@dataclass(frozen=True, slots=True)
class Held:
    """What all state held before a step.

    Attributes:
        storages: Name to (bytes, 32-byte digest).
        rng: Generator to its counter.
    """

    storages: Mapping[str, tuple[int, bytes]]
    rng: Mapping[str, int]

    def digest(self) -> bytes:
        """Returns the digest that the record of the step before has (32 bytes)."""
        return state_digest(self.storages, self.rng)


@dataclass(frozen=True, slots=True)
class Returned:
    """The content of `returned.cbor`.

    Attributes:
        states: Step to what state held before it.
        tensors: (step, name of an undeclared tensor) to (earlier step, name of the storage that held it before that).
    """

    states: Mapping[int, Held] = field(default_factory=dict)
    tensors: Mapping[tuple[int, str], tuple[int, str]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Returns the bytes of the file; `decode(returned.encode()) == returned`."""
        return cbor(
            {
                "states": [
                    [step, {name: list(entry) for name, entry in held.storages.items()}, dict(held.rng)]
                    for step, held in sorted(self.states.items())
                ],
                "tensors": [[*entered, *source] for entered, source in sorted(self.tensors.items())],
            }
        )


def decode(data: bytes) -> Returned:
    """Reads what `Returned.encode` wrote.

    Raises:
        FormatError: The bytes do not follow the format.
    """
    match decode_cbor(data):
        case {"states": list(states), "tensors": list(tensors), **rest} if not rest:
            held = dict(map(_held, states))
            entered = dict(map(_tensor, tensors))
            ordered = list(held) == sorted(held) and list(entered) == sorted(entered)
            used = {step for step, _ in entered.values()}
            if ordered and len(held) == len(states) and len(entered) == len(tensors) and used == set(held):
                return Returned(held, entered)
    raise FormatError(f"{RETURNED} is not a map of ascending states and tensors; fetch it again")


def _held(raw: Any) -> tuple[int, Held]:
    match raw:
        case [int(step), dict(storages), dict(rng)] if type(step) is int and 1 <= step < MAX_STEPS:
            if all(type(k) is str and type(n) is int and 0 <= n < _WORD for k, n in rng.items()):
                return step, Held(dict(map(_storage, storages.items())), rng)
    raise FormatError(f"a state in {RETURNED} is malformed; fetch it again")


def _storage(raw: Any) -> tuple[str, tuple[int, bytes]]:
    match raw:
        case (str(name), [int(size), bytes(digest)]) if type(size) is int and 0 <= size < _WORD:
            if len(digest) == DIGEST_SIZE:
                return name, (size, digest)
    raise FormatError(f"a storage in {RETURNED} is malformed; fetch it again")


def _tensor(raw: Any) -> tuple[tuple[int, str], tuple[int, str]]:
    match raw:
        case [int(step), str(name), int(before), str(storage)] if type(step) is int and type(before) is int:
            if 1 <= before <= step < MAX_STEPS:
                return (step, name), (before, storage)
    raise FormatError(f"a tensor in {RETURNED} is malformed; fetch it again")


def places(tape: Tape, step: int) -> dict[str, set[str]]:
    """Returns which state each undeclared tensor of a tape becomes: by being copied there, or by taking that name.

    Args:
        tape: The tape.
        step: The step that runs it.

    Returns:
        Name of the undeclared tensor to absolute names of state.
    """
    free = {i.slot: i.name for i in tape.inputs if i.origin == "free"}
    state = {i.slot: absolute_name(i.name, step) for i in tape.inputs if i.origin == "state"}
    found: dict[str, set[str]] = {}
    for slot, name in tape.survivors:
        if slot in free:
            found.setdefault(free[slot], set()).add(absolute_name(name, step))
    for node in tape.nodes:
        if node.op == "copy_.default" and len(node.args) >= 2:
            target, source = (references(operand) for operand in node.args[:2])
            for to, of in zip(target, source, strict=False):
                if tape.refs[of][0] in free and tape.refs[to][0] in state:
                    found.setdefault(free[tape.refs[of][0]], set()).add(state[tape.refs[to][0]])
    return found
