"""Where the values that enter a step come from: which are constants of the program, which follow from a formula.

A value that is the same in every step that ran a tape belongs to the program. One that changes must be a host value
(replay asserts that it is what the program computed) or what one declared formula gives, the same formula in every
step. Any other value is *undeclared*: the Prover chose it. The same holds for tensors without an origin that hold one
number. Larger ones are undeclared unless the run declares them as its batch or its state.

What was open to the Prover is counted in bits: all of an undeclared value, unless it is one that the step has already
or that was in its place before, and of one that lies beside its formula's value which of the numbers there it is.
Values that have a formula's very bits cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from weighbridge.core.errors import TapeError, WeighbridgeError
from weighbridge.program.adaptive_code import AdaptiveCode
from weighbridge.program.explanations import Candidate, Explanations, element, pattern
from weighbridge.program.own_tensors import returned
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import Scalar, StepRecord
from weighbridge.transcript.tape import DTYPES, Tape
from weighbridge.transcript.tensor_file import raw_bytes

SCALAR_BYTES = 8
"""An undeclared tensor up to this size is looked at as a value."""

TYPE_BITS = math.log2(3)
"""A value of the values vector is a float, an integer or a boolean."""

VALUE_BITS = 64 + TYPE_BITS
"""What a value of the values vector may carry."""


@dataclass(slots=True)
class TapeValues:
    """The values that entered the executions of one tape.

    Attributes:
        digest: The tape's digest.
        kind: Of the first step that ran it and was not the initialisation: `step` or `edit`; `init` if there is none.
        steps: How often it ran.
        first: First step that ran it.
        constants: Positions with the same value in every step; for a tape that ran once, all that no formula explains.
        changing: For each changing position: the formula (or `host`, `-host`) that explains it, None if none does.
        undeclared_values: Values without an origin: unexplained positions times executions.
        undeclared_tensors: For each undeclared tensor that is larger than a number: how many steps it entered in, and
            its bytes in all of them.
        once_bytes: For a tape that ran once: bytes of its constants that no formula explains. They may be anything.
        values: The values of its first execution, undeclared tensors of one number included.
        value_bits: By step, the bits that were chosen in its changing values; steps without any are left out.
    """

    digest: bytes
    kind: str
    steps: int = 0
    first: int = 0
    constants: int = 0
    changing: dict[int, str | None] = field(default_factory=dict)
    undeclared_values: int = 0
    undeclared_tensors: dict[str, tuple[int, int]] = field(default_factory=dict)
    once_bytes: int = 0
    values: tuple[Scalar, ...] = ()
    value_bits: dict[int, float] = field(default_factory=dict)
    indexed: frozenset[int] = frozenset()

    @property
    def undeclared_bytes(self) -> int:
        """Bytes of undeclared tensors in all executions."""
        return sum(size for _, size in self.undeclared_tensors.values())


class _Column:
    """What is known of one tape while the records go by."""

    def __init__(self, tape: Tape, record: StepRecord) -> None:
        self.found = TapeValues(record.tape, record.kind, first=record.step)
        self.scalars = _scalars(tape)
        self.own = len(record.values)
        self.dtypes = [DTYPES[name] for name in self.scalars.values()]
        self.reference: list[Scalar] | None = None
        self.bits: NDArray[np.int64] | None = None
        self.changing: set[int] = set()
        self.candidates: dict[int, frozenset[Candidate]] = {}
        self.apart: dict[int, dict[Candidate, float]] = {}
        """By position and candidate, the bits in which the values are not the candidate's, in all executions."""
        self.chosen: dict[int, Candidate | None] = {}
        self.priced: set[int] = set()

    def dtype(self, position: int) -> torch.dtype | None:
        """Type of the tensor that a position is; None for an operand."""
        return None if position < self.own else self.dtypes[position - self.own]

    def number(self, position: int) -> Scalar:
        """The number that was at a position first; what is no number, as the integer of its bits."""
        assert self.reference is not None, "every record was compared"
        value, dtype = self.reference[position], self.dtype(position)
        if dtype is None or not dtype.is_floating_point:
            return value
        decoded = element(int(value), dtype)
        return value if math.isnan(decoded) else decoded

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

    def explain(self, values: list[Scalar], step: Explanations) -> None:
        """Keeps, for every changing position, the candidates that give its value in this step too."""
        assert self.reference is not None, "every record was compared"
        for position in self.changing:
            value = values[position]
            near = step.near(value, self.candidates.get(position), self.dtype(position))
            self.candidates[position] = near.candidates
            if type(value) is not type(self.reference[position]):
                self.priced.add(position)
            for candidate, bits in near.apart.items():
                apart = self.apart.setdefault(position, {})
                apart[candidate] = apart.get(candidate, 0.0) + bits

    def choose(self) -> None:
        """Chooses for every changing position the candidate that its values are nearest to."""
        for position in self.changing:
            apart = self.apart.get(position, {})
            nearest = sorted(self.candidates.get(position, ()), key=lambda each: (apart.get(each, 0.0), each))
            self.chosen[position] = chosen = nearest[0] if nearest else None
            if chosen is None or chosen in apart:
                self.priced.add(position)

    def price(self, values: list[Scalar], step: Explanations, number: int, code: AdaptiveCode) -> float:
        """Returns the bits that were chosen in one execution.

        Args:
            values: What entered.
            step: What formulas give in it.
            number: The step's number.
            code: Of the values that no formula explains, in the whole run: one that stays as it was, or that stands in
                several places of a step, is chosen once.
        """
        assert self.reference is not None, "every record was compared"
        # Which of the values are not those of their formulas is a choice too.
        place = math.log2(max(2, self.found.steps * len(self.found.changing)))
        total = 0.0
        for position in self.priced & self.found.changing.keys():
            value, chosen, dtype = values[position], self.chosen[position], self.dtype(position)
            width = VALUE_BITS if dtype is None else 8.0 * dtype.itemsize
            if chosen is None:
                symbol = type(value).__name__, pattern(value) if type(value) is float else value
                at = "at", self.found.digest, position
                total += code.bits((symbol, width), (at, ("step", number)), width)
                continue
            bits = step.near(value, frozenset({chosen}), dtype).apart.get(chosen, 0.0)
            bits += TYPE_BITS * (type(value) is not type(self.reference[position]))
            total += min(width, bits + place) if bits else 0.0
        return total


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
    formulas = transcript.formulas()
    own = returned(transcript)
    columns: dict[bytes, _Column] = {}
    for record in transcript.records():
        column = columns.get(record.tape)
        if column is None:
            column = columns[record.tape] = _Column(tapes(record.tape), record)
        column.found.steps += 1
        if column.found.kind == "init":  # what it takes from outside in a later step is not excused by step 0
            column.found.kind = record.kind
        column.compare(_entering(transcript, record, column, own))
    once = {digest for digest, column in columns.items() if column.found.steps == 1}
    for digest in once:
        columns[digest].changing = set(range(len(columns[digest].reference or [])))

    def again(wanted: Callable[[_Column], object]) -> Iterable[tuple[_Column, StepRecord, list[Scalar], Explanations]]:
        """Goes through the records of some tapes once more."""
        if any(wanted(column) for column in columns.values()):
            for record, t in counted(transcript.records()):
                column = columns[record.tape]
                if wanted(column):
                    values = _entering(transcript, record, column, own, note=False)
                    yield column, record, values, Explanations(formulas, t, record.host, record.counts)

    for column, _, values, step in again(lambda column: column.changing):
        column.explain(values, step)
    for digest, column in columns.items():
        column.choose()
        _settle(column, digest in once)
    code = AdaptiveCode()
    for column, record, values, step in again(lambda column: column.priced & column.found.changing.keys()):
        if bits := column.price(values, step, record.step, code):
            column.found.value_bits[record.step] = bits
    return {digest: column.found for digest, column in columns.items()}


def counted(records: Iterable[StepRecord]) -> Iterable[tuple[StepRecord, int]]:
    """Yields each record with t: how many steps of kind `step` there were, this one included."""
    t = 0
    for record in records:
        t += record.kind == "step"
        yield record, t


def _settle(column: _Column, once: bool) -> None:
    found, total = column.found, len(column.reference or [])
    found.values = tuple(column.number(position) for position in range(total))
    for position, chosen in sorted(column.chosen.items()):
        if not once or chosen is not None:
            found.changing[position] = None if chosen is None else chosen[0]
    found.indexed = frozenset(p for p in found.changing if (c := column.chosen[p]) is not None and c[1] >= 0)
    found.constants = total - len(found.changing)
    if once:
        found.once_bytes = 8 * found.constants
    else:
        found.undeclared_values = found.steps * sum(name is None for name in found.changing.values())


def _bits(values: Sequence[Scalar]) -> NDArray[np.int64]:
    """The bit patterns of the floats, so that zeros of different sign differ and NaN equals itself."""
    floats = [v if type(v) is float else 0.0 for v in values]
    return np.array(floats, dtype=np.float64).view(np.int64)


def _scalars(tape: Tape) -> dict[str, str]:
    """Undeclared tensors that hold one number, by name with their dtype."""
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


def _entering(
    transcript: Transcript, record: StepRecord, column: _Column, own: Collection[tuple[int, str]], note: bool = True
) -> list[Scalar]:
    """The step's values, then its undeclared tensors of one number (floats as the integer of their bits).

    Larger tensors are noted as undeclared, except the run's own of an earlier step.
    """
    undeclared = transcript.undeclared(record.step) if record.free else {}
    scalars: list[Scalar] = []
    for name in record.free:
        dtype, t = column.scalars.get(name), undeclared[name]
        if dtype is not None and t.numel() * t.itemsize == DTYPES[dtype].itemsize:
            scalars.append(_element(raw_bytes(t), DTYPES[dtype]))
        elif note and t.numel() and (record.step, name) not in own:
            steps, size = column.found.undeclared_tensors.get(name, (0, 0))
            column.found.undeclared_tensors[name] = (steps + 1, size + t.numel() * t.itemsize)
    if len(scalars) != len(column.scalars) or len(record.values) != column.own:
        raise TapeError("a step does not have the values and undeclared tensors that its tape needs")
    return [*record.values, *scalars]


def _element(raw: memoryview, dtype: torch.dtype) -> Scalar:
    if dtype.is_floating_point:
        return int.from_bytes(raw, "little")
    return torch.frombuffer(bytearray(raw), dtype=dtype)[0].item()


def formula_texts(transcript: Transcript) -> Mapping[str, str]:
    """Returns the declared formulas by name; empty if there are none or they break the rules."""
    try:
        return {f.name: f.text for f in transcript.formulas().items.values()}
    except WeighbridgeError:
        return {}
