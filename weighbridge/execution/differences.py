"""What two transcripts say differently, step by step, without executing anything.

A difference is a flat map: `kind` (`length`, `step`, `program`, `value`, `batch`, `free`, `random`, `host`, `result`,
`state`), `step`, where known `op`, `operation`, `path`, a `name`, and what either run has, `a` and `b`, as texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from weighbridge.core.errors import TapeError
from weighbridge.execution.location import operands
from weighbridge.program.same_operations import digest_of_operations
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Node, Tape, references
from weighbridge.transcript.tensor_file import raw_bytes

Tensor = torch.Tensor
Difference = dict[str, Any]

_MOST = 8
"""Differences of one kind that are listed for a step."""

_NUMBERS = "numbers of references"


def difference(kind: str, step: int, name: str, a: object, b: object, **where: Any) -> Difference:
    """Returns one difference.

    Args:
        kind: See the module.
        step: Number of the step.
        name: What differs.
        a: What the first run has.
        b: What the second run has.
        **where: `op`, `operation` and `path`, where there is an operation.
    """
    found = {"kind": kind, "step": step, "op": None, "operation": None, "path": None, "name": name}
    return {**found, **where, "a": str(a)[:1000], "b": str(b)[:1000]}


def at(tape: Tape, op: int) -> dict[str, Any]:
    """Returns `op`, `operation` and `path` of an operation."""
    return {"op": op, "operation": tape.nodes[op].op, "path": tape.path_of(op)}


def drafts(a: Transcript, b: Transcript) -> list[dict[str, str]]:
    """Returns what the two runs fixed differently before the first step: `name`, `a`, `b`."""
    names = sorted((a.draft.keys() | b.draft.keys()) - {"name"})
    pairs = [(name, _plain(a.draft.get(name)), _plain(b.draft.get(name))) for name in names]
    return [{"name": str(name)[:200], "a": x[:1000], "b": y[:1000]} for name, x, y in pairs if x != y]


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else repr(value)


class Pair:
    """Two transcripts, compared record by record."""

    def __init__(self, a: Transcript, b: Transcript) -> None:
        self.a, self.b = a, b
        self._tapes: dict[bytes, Tape] = {}
        self._same: dict[tuple[bytes, bytes], bool] = {}

    def tapes(self, step: int) -> tuple[Tape, Tape]:
        """Returns the programs of a step of both."""
        return self._tape(self.a, self.a.step(step).tape), self._tape(self.b, self.b.step(step).tape)

    def _tape(self, transcript: Transcript, digest: bytes) -> Tape:
        if digest not in self._tapes:
            self._tapes[digest] = Tape.decode(transcript.tape(digest))
        return self._tapes[digest]

    def same_program(self, step: int) -> bool:
        """Tells whether a step ran the same program in both; module paths, which are names, do not matter."""
        key = self.a.step(step).tape, self.b.step(step).tape
        if key not in self._same:
            self._same[key] = key[0] == key[1] or _without_paths(self.tapes(step)[0]) == _without_paths(
                self.tapes(step)[1]
            )
        return self._same[key]

    def equal(self, step: int) -> bool:
        """Tells whether both say the same about a step."""
        a, b = self.a.step(step), self.b.step(step)
        return self.same_program(step) and _contents(a) == _contents(b)

    def differences(self, step: int) -> list[Difference]:
        """Returns what differs in a step: first what entered it, then what came of it.

        Args:
            step: A step that both have.

        Raises:
            WeighbridgeError: A part that the comparison needs is unreadable.
        """
        a, b = self.a.step(step), self.b.step(step)
        if a.kind != b.kind:
            return [difference("step", step, "kind of step", a.kind, b.kind)]
        if not self.same_program(step):
            return [programs(step, *self.tapes(step))]
        tape = self.tapes(step)[0]
        found = [*_values(a, b, tape), *self._tensors(step), *self._random(step, tape)]
        hosts = [(i, x, y) for i, (x, y) in enumerate(zip(a.host, b.host, strict=False)) if repr(x) != repr(y)]
        found += [difference("host", step, f"host value {i}", repr(x), repr(y)) for i, x, y in hosts[:_MOST]]
        index = first_checksum(a, b)
        if index is not None:
            x, y = (int(np.frombuffer(r.checksums, dtype="<u8")[index]) for r in (a, b))
            found.append(difference("result", step, f"checksum {index}", f"{x:016x}", f"{y:016x}"))
        if a.state != b.state:
            found.append(difference("state", step, "digest of the state afterwards", a.state.hex(), b.state.hex()))
        return found

    def _tensors(self, step: int) -> Iterator[Difference]:
        """What differs in the batch and in the undeclared tensors."""
        if self.a.step(step).batch == self.b.step(step).batch:
            return
        for kind, ours, theirs in (
            ("batch", self.a.batch(step), self.b.batch(step)),
            ("free", self.a.undeclared(step), self.b.undeclared(step)),
        ):
            pairs = [(name, ours.get(name), theirs.get(name)) for name in sorted(ours.keys() | theirs.keys())]
            shown = [(name, _tensor_difference(x, y)) for name, x, y in pairs]
            unequal = [(name, both) for name, both in shown if both is not None]
            yield from (difference(kind, step, name, *both) for name, both in unequal[:_MOST])

    def _random(self, step: int, tape: Tape) -> Iterator[Difference]:
        """Whether the draws of a step can differ: the seed, or where its counters begin."""
        first = next((op for op, node in enumerate(tape.nodes) if node.draw is not None), None)
        if first is None:
            return
        seeds = self.a.draft.get("seed"), self.b.draft.get("seed")
        if seeds[0] != seeds[1]:
            yield difference("random", step, "seed", *seeds, **at(tape, first))
        counters = self.a.step(step).rng, self.b.step(step).rng
        if counters[0] != counters[1]:
            yield difference("random", step, "counters", *counters, **at(tape, first))


def _contents(record: StepRecord) -> Any:
    """What a record says about its step, its program and its rounding log aside."""
    numbers = repr((record.values, record.host))
    return record.kind, numbers, record.rng, record.batch, record.free, record.checksums, record.state


def first_checksum(a: StepRecord, b: StepRecord) -> int | None:
    """Returns the number of the first checksum that differs, or None."""
    ours, theirs = (np.frombuffer(record.checksums, dtype="<u8") for record in (a, b))
    length = min(ours.size, theirs.size)
    unequal = np.flatnonzero(ours[:length] != theirs[:length])
    if unequal.size:
        return int(unequal[0])
    return None


def _values(a: StepRecord, b: StepRecord, tape: Tape) -> Iterator[Difference]:
    """What differs in the values vector, and which operation uses it first."""
    unequal = [i for i, (x, y) in enumerate(zip(a.values, b.values, strict=False)) if repr(x) != repr(y)]
    for index in unequal[:_MOST]:
        user = next((op for op, node in enumerate(tape.nodes) if _uses(node, index)), None)
        where = {} if user is None else at(tape, user)
        yield difference("value", a.step, f"value {index}", repr(a.values[index]), repr(b.values[index]), **where)


def _uses(node: Node, index: int) -> bool:
    return _among(("v", index), (node.args, tuple(node.kwargs.values())))


def _among(wanted: tuple[str, int], value: Any) -> bool:
    return value == wanted or (isinstance(value, tuple) and any(_among(wanted, each) for each in value))


# -- programs --------------------------------------------------------------------------------------------------------


def _without_paths(tape: Tape) -> Tape:
    return replace(tape, nodes=[node._replace(path=None) for node in tape.nodes], paths=[])


def programs(step: int, a: Tape, b: Tape) -> Difference:
    """The first operation that differs between two programs, or which other part of them."""
    for op, (ours, theirs) in enumerate(zip(a.nodes, b.nodes, strict=False)):
        if _meaning(a, ours) != _meaning(b, theirs):
            name, *shown = _unlike(a, b, op)
            if name != _NUMBERS and _reordered(a, b):
                name = "order of the operations, which are the same"
            return difference("program", step, name, *shown, **at(a, op))
    if len(a.nodes) != len(b.nodes):
        shorter = min(len(a.nodes), len(b.nodes))
        longer = a if len(a.nodes) > shorter else b
        return difference(
            "program", step, "number of operations", len(a.nodes), len(b.nodes), **at(longer, shorter)
        )  # fmt: skip
    for part in ("inputs", "frees", "survivors", "batch_views"):
        ours, theirs = getattr(a, part), getattr(b, part)
        if ours != theirs:
            pairs = zip([*ours, None], [*theirs, None], strict=False)
            return difference("program", step, part, *next(pair for pair in pairs if pair[0] != pair[1]))
    return difference("program", step, "numbering", "the same operations", "in another encoding")


def _unlike(a: Tape, b: Tape, op: int) -> tuple[str, Any, Any]:
    """What two operations differ in: all of them, or the field that does if they read alike."""
    shown = _shown(a, op), _shown(b, op)
    if shown[0] != shown[1]:
        return "operation", *shown
    ours, theirs = a.nodes[op], b.nodes[op]
    fields: list[tuple[str, Any, Any]] = [
        (f"operand {name} of the operation", _spelled(a, x), _spelled(b, y))
        for (name, x), (_, y) in zip(operands(ours), operands(theirs), strict=True)
    ]
    results = (_spelled(t, tuple(("t", o) for o in n.outputs if o is not None)) for t, n in ((a, ours), (b, theirs)))
    fields += [
        ("results of the operation", next(results), next(results)),
        ("memory that the operation makes", list(ours.births), list(theirs.births)),
        ("random draw of the operation", ours.draw, theirs.draw),
    ]
    numbers = [(node.args, node.kwargs, node.outputs) for node in (ours, theirs)]
    return next((field for field in fields if field[1] != field[2]), (_NUMBERS, numbers[0], numbers[1]))


def _reordered(a: Tape, b: Tape) -> bool:
    """Whether two programs are the same operations on the same data, which the compiler of PyTorch may order."""
    try:
        return len(a.nodes) == len(b.nodes) and digest_of_operations(a) == digest_of_operations(b)
    except TapeError:
        return False  # one of them is no program that could run


def _spelled(tape: Tape, value: Any) -> Any:
    """An encoded operand with what its references name: (slot, type, size, stride, offset)."""
    match value:
        case ("t", int(index)):
            return tape.refs[index]
        case tuple(items):
            return tuple(_spelled(tape, each) for each in items)
    return value


def _meaning(tape: Tape, node: Node) -> Any:
    """A node with its references spelled out."""
    used = [*references((node.args, tuple(node.kwargs.values()))), *(o for o in node.outputs if o is not None)]
    return node._replace(path=None), [tape.refs[r] for r in used]


def _shown(tape: Tape, op: int) -> str:
    node = tape.nodes[op]
    shapes = [
        f"{name}: {', '.join(f'{tape.refs[r][1]}{list(tape.refs[r][2])}' for r in references(value)) or _bare(value)}"
        for name, value in operands(node)
    ]
    path = tape.path_of(op)
    return f"{node.op}({'; '.join(shapes)})" + (f" in {path}" if path is not None else "")


def _bare(value: Any) -> str:
    return str(value).replace("'", "").replace(",)", ")")


# -- tensors ---------------------------------------------------------------------------------------------------------


def _tensor_difference(a: Tensor | None, b: Tensor | None) -> tuple[str, str] | None:
    """Returns how two tensors differ (their first differing element), or None if they do not."""
    if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape:
        shapes = ["none" if t is None else f"{t.dtype} {list(t.shape)}" for t in (a, b)]
        return None if a is b else (shapes[0], shapes[1])
    ours, theirs = (np.frombuffer(raw_bytes(t.contiguous()), dtype=np.uint8).reshape(-1, t.itemsize) for t in (a, b))
    unequal = np.flatnonzero((ours != theirs).any(axis=1))
    if not unequal.size:
        return None
    place = int(unequal[0])
    index = [int(i) for i in np.unravel_index(place, tuple(a.shape))] if a.dim() else []
    texts = [f"{t.reshape(-1)[place].item()!r} at {index}" for t in (a, b)]
    return f"{texts[0]} ({unequal.size} of {a.numel()} elements differ)", texts[1]
