"""Where the values that enter a step come from: which are constants of the program, which follow from a formula.

A value that is the same in every step that ran a tape belongs to the program. One that changes must be a host value
(replay asserts that it is what the program computed) or what one declared formula gives, the same formula in every
step; else it is *free*: the Prover chose it. The same holds for tensors without an origin that hold one number. Larger
ones are free unless the run declares them as its batch or its state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from weighbridge.errors import TapeError, WeighbridgeError
from weighbridge.formulas import Formulas, Number, agrees
from weighbridge.steps import Scalar, StepRecord
from weighbridge.tape import DTYPES, Tape
from weighbridge.tensorfile import raw_bytes
from weighbridge.transcript import Transcript

SCALAR_BYTES = 8
"""A free tensor up to this size is looked at as a value."""

Candidate = tuple[str, int]
"""A formula's name (or `host`, `-host`) and which host value it begins at."""


@dataclass(slots=True)
class TapeValues:
    """The values that entered the executions of one tape.

    Attributes:
        digest: The tape's digest.
        kind: `init`, `step` or `edit`.
        steps: How often it ran.
        first: First step that ran it.
        constants: Positions with the same value in every step; for a tape that ran once, all of them.
        changing: For each changing position: the formula (or `host`, `-host`) that explains it, None if none does.
        free_values: Values without an origin: unexplained positions times executions.
        free_tensors: For each free tensor that is larger than a number: how many steps it entered in, and its bytes in
            all of them.
        once_bytes: For a tape that ran once: bytes of its constants that no formula explains. They may be anything.
    """

    digest: bytes
    kind: str
    steps: int = 0
    first: int = 0
    constants: int = 0
    changing: dict[int, str | None] = field(default_factory=dict)
    free_values: int = 0
    free_tensors: dict[str, tuple[int, int]] = field(default_factory=dict)
    once_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """Bytes of free tensors in all executions."""
        return sum(size for _, size in self.free_tensors.values())


class _Column:
    """What is known of one tape while the records go by."""

    def __init__(self, tape: Tape, record: StepRecord) -> None:
        self.found = TapeValues(record.tape, record.kind, first=record.step)
        self.scalars = _scalars(tape)
        self.reference: list[Scalar] | None = None
        self.bits: NDArray[np.int64] | None = None
        self.changing: set[int] = set()
        self.candidates: dict[int, frozenset[Candidate]] = {}

    def compare(self, values: list[Scalar]) -> None:
        """Notes which positions differ from the first execution."""
        bits = _bits(values)
        if self.reference is None or self.bits is None:
            self.reference, self.bits = values, bits
            return
        if len(values) != len(self.reference):
            raise TapeError("two executions of one tape have different numbers of values")
        self.changing.update(np.nonzero(bits != self.bits)[0].tolist())
        self.changing.update(
            i
            for i, (a, b) in enumerate(zip(values, self.reference, strict=True))
            if type(a) is not type(b) or (type(a) is not float and a != b)
        )


def analyse(transcript: Transcript, tapes: Callable[[bytes], Tape]) -> dict[bytes, TapeValues]:
    """Finds the origin of every value that entered a step, over the whole transcript.

    Args:
        transcript: A verified transcript.
        tapes: Returns the tape of a digest.

    Returns:
        For each tape that ran, in order of first use, what entered it.

    Raises:
        TapeError: A formula breaks the rules (`tape.formula`), or a record does not fit its tape.
    """
    formulas = Formulas.parse(transcript.draft.get("formulas", []))
    columns: dict[bytes, _Column] = {}
    for record in transcript.records():
        column = columns.get(record.tape)
        if column is None:
            column = columns[record.tape] = _Column(tapes(record.tape), record)
        column.found.steps += 1
        column.compare(_entering(transcript, record, column))
    once = {digest for digest, column in columns.items() if column.found.steps == 1}
    for digest in once:
        columns[digest].changing = set(range(len(columns[digest].reference or [])))
    if any(column.changing for column in columns.values()):
        for record, t in counted(transcript.records()):
            column = columns[record.tape]
            if column.changing:
                _explain(column, _entering(transcript, record, column, note=False), _Explanations(formulas, t, record))
    for digest, column in columns.items():
        _settle(column, digest in once)
    return {digest: column.found for digest, column in columns.items()}


def counted(records: Iterable[StepRecord]) -> Iterable[tuple[StepRecord, int]]:
    """Yields each record with t: how many steps of kind `step` there were, this one included."""
    t = 0
    for record in records:
        t += record.kind == "step"
        yield record, t


def _settle(column: _Column, once: bool) -> None:
    found, total = column.found, len(column.reference or [])
    for position in sorted(column.changing):
        names = sorted({name for name, _ in column.candidates.get(position, ())})
        if not once or names:
            found.changing[position] = names[0] if names else None
    if once:
        found.constants = total - len(found.changing)
        found.once_bytes = 8 * found.constants
    else:
        found.constants = total - len(column.changing)
        found.free_values = found.steps * sum(name is None for name in found.changing.values())


def _bits(values: Sequence[Scalar]) -> NDArray[np.int64]:
    """The bit patterns of the floats, so that zeros of different sign differ and NaN equals itself."""
    floats = [v if type(v) is float else 0.0 for v in values]
    return np.array(floats, dtype=np.float64).view(np.int64)


def _scalars(tape: Tape) -> dict[str, str]:
    """Free tensors that hold one number, by name with their dtype."""
    small = {i.slot: i.name for i in tape.inputs if i.origin == "free" and i.bytes <= SCALAR_BYTES}
    kinds: dict[str, set[tuple[str, int]]] = {}
    for slot, dtype, size, _, offset in tape.refs:
        if slot in small:
            kinds.setdefault(small[slot], set()).add((dtype, math.prod(size) if not offset else 2))
    sizes = {i.name: i.bytes for i in tape.inputs if i.origin == "free"}
    found = {}
    for name, seen in kinds.items():
        dtype, elements = next(iter(seen))
        if len(seen) == 1 and elements == 1 and DTYPES[dtype].itemsize == sizes[name]:
            found[name] = dtype
    return dict(sorted(found.items()))


def _entering(transcript: Transcript, record: StepRecord, column: _Column, note: bool = True) -> list[Scalar]:
    """The step's values, then its free tensors of one number; larger ones are noted as free."""
    if not record.free:
        return list(record.values)
    free = transcript.free(record.step)
    scalars: list[Scalar] = []
    for name in record.free:
        dtype, t = column.scalars.get(name), free[name]
        if dtype is not None and t.numel() * t.itemsize == DTYPES[dtype].itemsize:
            number = torch.frombuffer(bytearray(raw_bytes(t)), dtype=DTYPES[dtype])[0].item()
            scalars.append(number)
        elif note and t.numel():
            steps, size = column.found.free_tensors.get(name, (0, 0))
            column.found.free_tensors[name] = (steps + 1, size + t.numel() * t.itemsize)
    return [*record.values, *scalars]


class _Explanations:
    """What formulas and host values give in one step, computed when asked for."""

    def __init__(self, formulas: Formulas, t: int, record: StepRecord) -> None:
        self._formulas, self._t = formulas, t
        self._hosts = [float(h) for h in record.host]
        self._known: dict[Candidate, Number] = {}
        self.cache: dict[tuple[float, frozenset[Candidate] | None, float], frozenset[Candidate]] = {}

    def all(self) -> frozenset[Candidate]:
        """Every candidate that this step has."""
        found = {(f.name, -1) for f in self._formulas.items.values() if not f.hosts}
        for index in range(len(self._hosts)):
            found |= {(f.name, index) for f in self._formulas.items.values() if f.hosts}
            found |= {("host", index), ("-host", index)}
        return frozenset(found)

    def gives(self, candidate: Candidate, value: float, precision: float) -> bool:
        """Whether a candidate gives a value."""
        name, index = candidate
        if name in ("host", "-host"):
            if index >= len(self._hosts):
                return False
            host = -self._hosts[index] if name == "-host" else self._hosts[index]
            return value == host or (math.isnan(value) and math.isnan(host))
        if candidate not in self._known:
            self._known[candidate] = self._formulas.evaluate(name, self._t, self._hosts, max(index, 0))
        return math.isfinite(value) and agrees(value, self._known[candidate], precision)


def _explain(column: _Column, values: list[Scalar], step: _Explanations) -> None:
    """Keeps, for every changing position, the candidates that give its value in this step too."""
    own = len(values) - len(column.scalars)
    kinds = [DTYPES[name] for name in column.scalars.values()]
    precisions = [torch.finfo(kind).eps if kind.is_floating_point else 0.0 for kind in kinds]
    for position in column.changing:
        value, left = float(values[position]), column.candidates.get(position)
        precision = 0.0 if position < own else precisions[position - own]
        key = (value, left, precision)
        kept = step.cache.get(key)
        if kept is None:
            kept = frozenset(c for c in (step.all() if left is None else left) if step.gives(c, value, precision))
            step.cache[key] = kept
        column.candidates[position] = kept


def formula_texts(transcript: Transcript) -> Mapping[str, str]:
    """Returns the declared formulas by name; empty if there are none or they break the rules."""
    try:
        return {f.name: f.text for f in Formulas.parse(transcript.draft.get("formulas", [])).items.values()}
    except WeighbridgeError:
        return {}
