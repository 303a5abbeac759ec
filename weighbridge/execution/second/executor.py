"""Holds a state as NumPy memory, and runs the tapes of steps on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import TapeError, WeighbridgeError
from weighbridge.execution.second import rules as _rules
from weighbridge.execution.second.following import Step
from weighbridge.execution.second.memory import Array, Bytes, NotCoveredError, kind_of, view
from weighbridge.execution.second.rounding import canonical
from weighbridge.execution.second.signatures import require_form
from weighbridge.execution.second.table import RULES, Call, Kind, Rule, Wide, base
from weighbridge.numerics.rounding.rounding_log import LogReader
from weighbridge.transcript.state import Checkpoint, state_digest
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import MEMORY_FORMATS, Node, Ref, Tape, absolute_name
from weighbridge.transcript.tensor_file import raw_bytes

assert _rules.FAMILIES

_UNFIT = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


def bytes_of(tensor: torch.Tensor) -> Bytes:
    """Returns a copy of what a reader of transcripts read, as bytes."""
    return np.frombuffer(bytearray(raw_bytes(tensor)), dtype=np.uint8)


class SecondExecutor:
    """Runs steps, and compares every result with what the record says of it.

    Attributes:
        state: Storages by name.
        rng: Counters of generators by name.
        rounded: Elements rounded so far.
        contested: Those of them of which the log has an entry.
        followed: Those of these that would have come out otherwise here.
        block: The least terms of the blocks that products are split into; 0 under policies without blocks.
    """

    def __init__(self, seed: int, max_bytes: int) -> None:
        """Prepares an empty state.

        Args:
            seed: The run's seed, from the draft.
            max_bytes: Most bytes that the storages of a tape may have together.
        """
        self.state: dict[str, Bytes] = {}
        self.rng: dict[str, int] = {}
        self.rounded = self.contested = self.followed = 0
        self._seed, self._max_bytes = seed, max_bytes
        self.block = 0

    def load(self, checkpoint: Checkpoint) -> None:
        """Takes over a checkpoint's state."""
        self.state = {name: bytes_of(data) for name, data in checkpoint.storages.items()}
        self.rng = dict(checkpoint.rng)

    def state_digest(self) -> bytes:
        """Digest of the state as a step record carries it (32 bytes)."""
        regions = {name: (data.size, bytes_digest(data.tobytes())) for name, data in self.state.items()}
        return state_digest(regions, self.rng)

    def run(
        self, tape: Tape, record: StepRecord, log: LogReader, batch: Mapping[str, torch.Tensor],
        undeclared: Mapping[str, torch.Tensor],
    ) -> None:  # fmt: skip
        """Runs one step.

        Raises:
            DifferenceError: At the first operation whose result differs.
            NotCoveredError: At the first operation that has no rule here.
            TapeError: The tape does not fit its record, or its operands do not fit an operation.
            LogError: A log entry is inadmissible.
        """
        if len(record.values) != tape.values or len(record.host) != tape.hosts:
            raise TapeError(f"step {record.step}: the record has {len(record.values)} values, its tape {tape.values}")
        if tape.largest_footprint() > self._max_bytes:
            raise TapeError(
                f"step {record.step} needs {tape.largest_footprint()} bytes, more than the limit of {self._max_bytes}; "
                "raise the memory limit if this machine has them",
                code="tape.too_large",
            )
        if record.collectives:
            raise NotCoveredError("collectives")
        step = Step(record, log, self._seed)
        slots, names = self._enter(tape, record, batch, undeclared)
        frees: dict[int, list[int]] = {}
        for at, slot in tape.frees:
            frees.setdefault(at, []).append(slot)
        for index, node in enumerate(tape.nodes):
            self._free(frees.get(index, ()), slots, names)
            self._perform(index, node, tape, step, slots)
        self._free(frees.get(len(tape.nodes), ()), slots, names)
        step.end()
        self.rounded += step.rounded_elements
        self.contested += step.contested
        self.followed += step.followed
        for slot, relative in tape.survivors:
            name = absolute_name(relative, record.step)
            if slot not in slots or slot in names or name in self.state:
                raise TapeError(f"step {record.step}: slot {slot} cannot become the state {name!r}")
            self.state[name], names[slot] = slots[slot], name
        self.rng.update({str(number): after for number, after in step.rng.items()})

    def _enter(
        self, tape: Tape, record: StepRecord, batch: Mapping[str, torch.Tensor], undeclared: Mapping[str, torch.Tensor]
    ) -> tuple[dict[int, Bytes], dict[int, str]]:
        """Binds the storages that come from outside; returns them by slot, and the names of those of the state."""
        slots: dict[int, Bytes] = {}
        names: dict[int, str] = {}
        for item in tape.inputs:
            if item.origin != "dropped":
                continue
            name = absolute_name(item.name, record.step)
            if name not in self.state or self.state.pop(name).size != item.bytes:
                raise TapeError(f"step {record.step} drops the state {name!r}, which does not exist then")
        for item in tape.inputs:
            if item.origin == "state":
                name = absolute_name(item.name, record.step)
                if name not in self.state or name in names.values():
                    raise TapeError(
                        f"step {record.step} reads the state {name!r}, which does not exist or is read twice"
                    )
                slots[item.slot], names[item.slot] = self.state[name], name
            elif item.origin == "free":
                if item.name not in undeclared:
                    raise TapeError(f"step {record.step} has no undeclared tensor {item.name!r}")
                slots[item.slot] = bytes_of(undeclared[item.name])
            elif item.origin == "batch":
                slots[item.slot] = np.zeros(item.bytes, dtype=np.uint8)
            if item.slot in slots and slots[item.slot].size != item.bytes:
                raise TapeError(
                    f"step {record.step}: slot {item.slot} should have {item.bytes} bytes and has "
                    f"{slots[item.slot].size}"
                )
        self._fill(tape, record.step, batch, slots)
        return slots, names

    def _fill(self, tape: Tape, step: int, batch: Mapping[str, torch.Tensor], slots: Mapping[int, Bytes]) -> None:
        """Lays the batch's tensors where the tape has them."""
        found: list[tuple[str, Array, Array]] = []
        for name, ref in tape.batch_views:
            if name not in batch or ref[2] != tuple(batch[name].shape) or ref[0] not in slots:
                raise TapeError(f"step {step}: the batch has no tensor {name!r} of the shape that the tape expects")
            source = bytes_of(batch[name]).view(kind_of(ref[1])).reshape(ref[2])
            found.append((name, view(slots[ref[0]], ref), source))
            found[-1][1][...] = source
        for name, target, source in found:
            if target.tobytes() != source.tobytes():
                raise TapeError(f"step {step}: the tape lays other parts of the batch over its tensor {name!r}")

    def _free(self, gone: Any, slots: dict[int, Bytes], names: dict[int, str]) -> None:
        for slot in gone:
            slots.pop(slot, None)
            if slot in names:
                self.state.pop(names.pop(slot), None)

    def _perform(self, index: int, node: Node, tape: Tape, step: Step, slots: dict[int, Bytes]) -> None:
        """Executes one operation."""
        key, changes = base(node.op)
        rule = RULES.get(key)
        if rule is None:
            raise NotCoveredError(node.op)
        require_form(node.op, key, changes)
        if not rule.fits(len(node.args), node.kwargs):
            raise TapeError(f"operation {index} ({node.op}) has operands that do not fit it")
        if lacking := rule.lacking(len(node.args), node.kwargs):
            raise TapeError(f"operation {index} ({node.op}) lacks its operand {lacking!r}")
        refs = [None if o is None else tape.refs[o] for o in node.outputs]
        if rule.kind is Kind.VIEW:
            # It computes nothing; which memory it names was checked against the storage when the tape was decoded.
            if node.births or not any(isinstance(v, tuple) and v[:1] == ("t",) for v in node.args):
                raise TapeError(f"operation {index} ({node.op}) is a view but makes memory")
            for value in (*node.args, *node.kwargs.values()):
                if not isinstance(value, tuple) or value[:1] != ("t",):
                    _decode(value, tape, slots, step.record.values)
            return
        step.begin(index, node, refs, changes)
        try:
            with np.errstate(all="ignore"):
                self._evaluate(key, rule, node, tape, step, slots, refs, changes)
        except (WeighbridgeError, NotCoveredError):
            raise
        except MemoryError:  # nothing is said of the Prover: a tape may ask for more than a machine has
            raise NotCoveredError(f"{node.op} on so many elements") from None
        except _UNFIT as error:
            text = (str(error).splitlines() or [""])[0][:200]
            raise TapeError(
                f"operation {index} ({node.op}) cannot be applied to its operands: {text or type(error).__name__}"
            ) from None

    def _evaluate(
        self, key: str, rule: Rule, node: Node, tape: Tape, step: Step, slots: dict[int, Bytes],
        refs: list[Ref | None], changes: bool,
    ) -> None:  # fmt: skip
        values = step.record.values
        kwargs = {name: _decode(value, tape, slots, values) for name, value in node.kwargs.items()}
        if "dtype" not in rule.names:
            _check_placing(kwargs, refs)
        operands = rule.bind([_decode(value, tape, slots, values) for value in node.args], kwargs)
        if changes and not isinstance(operands.get("self"), np.ndarray):
            raise NotCoveredError(node.op)
        call = Call(key.partition(".")[0], operands, refs, changes, step, self.block)
        assert rule.function is not None
        given = rule.function(call)
        if rule.kind is Kind.HOST:
            step.host(given)
            return
        results = given if isinstance(given, list) else [given]
        if len(results) != len(refs):
            raise TapeError(f"it returned {len(results)} values; the tape says {len(refs)}")
        found = [
            settled(result, ref, rule, call) for result, ref in zip(results, refs, strict=True)
        ]  # in the order of their checksums, before any is written
        for result, ref in zip(found, refs, strict=True):
            if changes:
                operands["self"][...] = result
            elif ref is not None:
                _keep(result, ref, dict(node.births), slots)
        if set(dict(node.births)) - set(slots):
            raise TapeError("it did not make a storage that the tape says it makes")


def settled(result: Any, ref: Ref | None, rule: Rule, call: Call) -> Array | None:
    """Returns a result as it is kept: rounded if it is wide, accounted for if its rule says so."""
    if result is None:
        return None
    if isinstance(result, Wide):
        return call.accounting.rounded(result, ref)
    value = np.asarray(result)
    if rule.kind in (Kind.EXACT, Kind.SELECT):
        if rule.kind is Kind.SELECT and value.dtype.kind == "f":
            value = value + value.dtype.type(0)  # of two zeros, kernels disagree which is larger
        return call.accounting.exact(value, ref)
    converts = any(v.dtype != value.dtype and v.dtype.kind == "f" for v in _arrays(call.operands))
    if value.dtype.kind == "f" and (rule.computes or converts or rule.kind is Kind.RANDOM):
        return canonical(value)
    return value


def _check_placing(kwargs: Mapping[str, Any], refs: list[Ref | None]) -> None:
    """Checks that a call asks for no other type than the tape says its results have, and for no generator's tensor."""
    kind = kwargs.get("dtype")
    if kind is not None and any(kind is not kind_of(ref[1]) for ref in refs if ref is not None):
        raise TapeError(f"it asks for {str(kind)[:20]}; the tape says its result is of another type")
    if kwargs.get("generator") is not None:
        raise TapeError("it draws from what is no generator")


def _arrays(operands: Mapping[str, Any]) -> list[Array]:
    nested = [v if isinstance(v, list) else [v] for v in operands.values()]
    return [v for values in nested for v in values if isinstance(v, np.ndarray)]


def _keep(result: Array | None, ref: Ref, births: Mapping[int, int], slots: dict[int, Bytes]) -> None:
    """Puts a result into the storage that the tape says it makes."""
    if result is None:
        raise TapeError("it returned no tensor where the tape has one")
    if result.shape != ref[2] or result.dtype != kind_of(ref[1]):
        raise TapeError(f"it made {result.shape} {result.dtype}; the tape says {ref[1:3]}")
    if ref[0] not in births:
        if result.size:
            raise NotCoveredError("an operation that returns memory that exists")
        return
    slots[ref[0]] = np.zeros(births[ref[0]], dtype=np.uint8)
    if result.size:
        view(slots[ref[0]], ref)[...] = result


def _decode(value: Any, tape: Tape, slots: Mapping[int, Bytes], values: list[Any]) -> Any:
    """Returns what an encoded operand stands for."""
    match value:
        case ("t", int(index)):
            ref = tape.refs[index]
            return view(slots[ref[0]], ref)
        case ("v", int(index)) if 0 <= index < len(values):
            return values[index]
        case ("l", tuple(items)):
            return [_decode(v, tape, slots, values) for v in items]
        case ("d", str(name)):
            return kind_of(name)
        case ("s", str(text)):
            return text
        case ("m", str(name)) if name in MEMORY_FORMATS:
            return None
        case ("dev",) | ("lay",):
            return None
        case tuple():
            raise TapeError("an operand has an unknown form")
    return value
