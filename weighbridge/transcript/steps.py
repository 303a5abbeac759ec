"""Step records and the files that hold a segment of them.

A step record says everything about one execution of a tape except the bulk: tensors and rounding logs are named by
digest. The transcript's running head chains the records, so the head fixes every earlier record.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from weighbridge.core.bounded import (
    Limits,
    compress,
    decode_cbor,
    decode_cbor_sequence,
    decompress,
    expand_cbor,
    read_file,
)
from weighbridge.core.digests import DIGEST_SIZE, cbor, record_digest
from weighbridge.core.errors import FormatError
from weighbridge.transcript.formula_terms import COUNTS, MAX_FORMULAS, MAX_LENGTH
from weighbridge.transcript.tensor_file import TensorFile

Scalar = float | int | bool
Kind = Literal["init", "step", "edit"]

MAX_STEPS = 10**8
"""File names hold steps in eight digits."""

LAYOUT = re.compile(
    r"draft\.cbor|resumptions\.cbor|chips\.cbor|returned\.cbor|entered\.cbor|claims\.cbor|layout\.cbor|data/(leaves|order)\.bin|tapes/[0-9a-f]{64}\.cbor\.zst|steps/(?P<steps>[0-9]{8})\.cbor\.zst"
    r"|rounding/(?P<rounding>[0-9]{8})\.wlog\.zst|(batches|checkpoints)/(?P<tensors>[0-9]{8})\.safetensors"
)
"""Paths of all files that a manifest may list."""

_KINDS = ("init", "step", "edit")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One execution of one tape.

    Attributes:
        step: Number of the step, from 0.
        kind: `init` for step 0, else `step`, or `edit` for a change of state between steps.
        tape: BLAKE3 digest of the tape (32 bytes).
        values: The vector of hoisted floats, integers and booleans; types are kept apart.
        host: Values that the program read back from tensors, in order; types are kept apart.
        rng: Generator name to its counter before and after the step.
        state: `state_digest` after the step (32 bytes).
        checksums: 8 bytes, little endian, for every rounded output in order.
        rounding: BLAKE3 digest of the encoded rounding log (32 bytes).
        batch: `batch_digest` of batch and undeclared tensors (32 bytes).
        records: Ids of the batch's records in the data commitment; empty without one.
        record_digests: Digest of every record of the batch (32 bytes each).
        free: Names of the undeclared tensors, ascending.
        snapshots: (chip UEID, log index, operations complete) of every snapshot taken during the step.
        rounded: Elements rounded in the step.
        logged: Entries of the rounding log.
        collectives: (operation, root over what this rank contributed, root over what it got) of every collective, in
            order (`weighbridge.transcript.collectives`); a record without any does not have the key.
        formulas: Of step 0 only: [name, text] of formulas that were declared once the optimizer was there, beside those
            of the draft (`weighbridge.transcript.formula_terms`); a record without any does not have the key.
        counts: How far the schedules were that these formulas follow (`count`, `count1`, ...); a record without any
            does not have the key.
        parent: Of step 0 only: transcript, step and state that the run turned out to begin from, where the draft could
            not name them yet (`weighbridge.transcript.parentage`); a record without any does not have the key.
        outputs: Digest of all rounded outputs (`weighbridge.numerics.rounding.outputs_digest`, 32 bytes) of a step
            whose log is made on demand or sketched; a record with a log in full does not have the key.
        sketches: Version of the sketches (1) that `rounding` names beside the log of 32-bit outputs
            (`weighbridge.numerics.sketches.step_sketches`); a record without sketches does not have the key.
    """

    step: int
    kind: Kind
    tape: bytes
    values: list[Scalar]
    host: list[Scalar]
    rng: dict[str, tuple[int, int]]
    state: bytes
    checksums: bytes
    rounding: bytes
    batch: bytes
    records: list[int]
    record_digests: list[bytes]
    free: list[str]
    snapshots: list[tuple[bytes, int, int]]
    rounded: int
    logged: int
    collectives: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    formulas: list[tuple[str, str]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    parent: dict[str, Any] = field(default_factory=dict)
    outputs: bytes = b""
    sketches: int = 0

    def to_map(self) -> dict[str, Any]:
        """Returns the CBOR map of this record: its fields by name."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in found.items() if value or name not in _MAY_LACK}

    def to_cbor(self) -> bytes:
        """Returns the record as deterministic CBOR."""
        return cbor(self.to_map())

    def digest(self) -> bytes:
        """Returns the 32-byte digest that the running head chains."""
        return record_digest("step/1", self.to_map())

    @classmethod
    def from_map(cls, value: Any) -> StepRecord:
        """Builds a record from a decoded CBOR map, checking every field.

        Raises:
            FormatError: A field is missing, unknown, or not of its type and range.
        """
        if not isinstance(value, dict) or set(value) - _MAY_LACK.keys() != set(_CHECKS):
            raise FormatError(f"a step record must have exactly the fields {', '.join(_CHECKS)}; fetch it again")
        for name, good in (_CHECKS | _MAY_LACK).items():
            if name in value and not good(value[name]):
                raise FormatError(f"field {name!r} of a step record is malformed; fetch it again", field=name)
        record = cls(
            **{
                **value,
                "rng": {name: (pair[0], pair[1]) for name, pair in value["rng"].items()},
                "snapshots": [(entry[0], entry[1], entry[2]) for entry in value["snapshots"]],
                "collectives": [(entry[0], entry[1], entry[2]) for entry in value.get("collectives", ())],
                "formulas": [(entry[0], entry[1]) for entry in value.get("formulas", ())],
            }
        )
        if (record.kind == "init") != (record.step == 0):
            raise FormatError("step 0, and no other, is the initialisation; fetch the step records again")
        if (record.formulas or record.parent) and record.step:
            raise FormatError(
                "formulas and a parent are declared in step 0, and in no other; fetch the step records again"
            )
        if record.sketches and not record.outputs:
            raise FormatError(f"step {record.step} has sketches and no digest of its outputs; fetch it again")
        if record.outputs and record.logged and not record.sketches:
            raise FormatError(f"step {record.step} has log entries and a digest in their place; fetch it again")
        if record.records and len(record.records) != len(record.record_digests):
            raise FormatError(f"step {record.step} does not have one digest for each record id; fetch it again")
        return record

    @classmethod
    def from_cbor(cls, data: bytes) -> StepRecord:
        """Reads what `to_cbor` wrote.

        Raises:
            FormatError: The bytes are not the deterministic encoding of a record.
        """
        return cls.from_map(decode_cbor(data))


def same_scalar(a: Scalar, b: Scalar) -> bool:
    """True if a record has the same for two values: the type, and of floats the bits; it knows one NaN only."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (a == b and math.copysign(1.0, a) == math.copysign(1.0, b)) or (a != a and b != b)
    return a == b


def _natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _digest(value: Any) -> bool:
    return type(value) is bytes and len(value) == DIGEST_SIZE


def _scalar(value: Any) -> bool:
    return type(value) in (float, bool) or (type(value) is int and -(1 << 63) <= value < 1 << 64)


def _each(good: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and all(map(good, value))


def _pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_natural, value))


def _snapshot(value: Any) -> bool:
    triple = isinstance(value, list | tuple) and len(value) == 3
    return triple and type(value[0]) is bytes and 0 < len(value[0]) <= 64 and all(map(_natural, value[1:]))


def _collectives(value: Any) -> bool:
    """Some (operation, root, root), operations ascending; an empty list is not written."""
    if type(value) is not list or not value:
        return False
    triples = all(isinstance(entry, list | tuple) and len(entry) == 3 for entry in value)
    if not triples or not all(_natural(op) and _digest(a) and _digest(b) for op, a, b in value):
        return False
    return all(first[0] < second[0] for first, second in itertools.pairwise(value))


def _formulas(value: Any) -> bool:
    """Some (name, text); an empty list is not written. What they mean is not looked at here."""
    if type(value) is not list or not 0 < len(value) <= MAX_FORMULAS:
        return False
    pairs = all(isinstance(entry, list | tuple) and len(entry) == 2 for entry in value)
    return pairs and all(type(part) is str and len(part) <= MAX_LENGTH for entry in value for part in entry)


def _counts(value: Any) -> bool:
    return type(value) is list and 0 < len(value) <= len(COUNTS) and all(map(_natural, value))


def _parent(value: Any) -> bool:
    """A map with the keys of a draft's parent. What they mean is not looked at here."""
    if type(value) is not dict or set(value) != {"transcript", "step", "state"}:
        return False
    return _digest(value["transcript"]) and _digest(value["state"]) and _natural(value["step"])


def _names(value: Any) -> bool:
    return type(value) is list and all(type(name) is str for name in value) and value == sorted(set(value))


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "step": lambda value: _natural(value) and value < MAX_STEPS,
    "kind": lambda value: type(value) is str and value in _KINDS,
    "tape": _digest,
    "values": _each(_scalar),
    "host": _each(_scalar),
    "rng": lambda value: type(value) is dict and all(type(key) is str and _pair(pair) for key, pair in value.items()),
    "state": _digest,
    "checksums": lambda value: type(value) is bytes and len(value) % 8 == 0,
    "rounding": _digest,
    "batch": _digest,
    "records": _each(_natural),
    "record_digests": _each(_digest),
    "free": _names,
    "snapshots": _each(_snapshot),
    "rounded": _natural,
    "logged": _natural,
}
_MAY_LACK: dict[str, Callable[[Any], bool]] = {
    "collectives": _collectives,
    "formulas": _formulas,
    "counts": _counts,
    "parent": _parent,
    "outputs": _digest,
    "sketches": lambda value: type(value) is int and value == 1,
}


def steps_path(first: int) -> str:
    """Returns the relative path of the step records of the segment that starts at step `first`."""
    return f"steps/{first:08d}.cbor.zst"


def rounding_path(first: int) -> str:
    """Returns the relative path of the rounding logs of the segment that starts at step `first`."""
    return f"rounding/{first:08d}.wlog.zst"


def batches_path(first: int) -> str:
    """Returns the relative path of the batch and undeclared tensors of the segment that starts at step `first`."""
    return f"batches/{first:08d}.safetensors"


def checkpoint_path(step: int) -> str:
    """Returns the relative path of the checkpoint before `step`."""
    return f"checkpoints/{step:08d}.safetensors"


def tape_path(digest: bytes) -> str:
    """Returns the relative path of a tape."""
    return f"tapes/{digest.hex()}.cbor.zst"


def pack_records(records: Sequence[StepRecord]) -> bytes:
    """Returns the contents of a steps file: zstd over the CBOR sequence of records."""
    return compress(b"".join(record.to_cbor() for record in records))


def read_records(path: Path, limits: Limits) -> list[StepRecord]:
    """Reads a steps file.

    Raises:
        FormatError: It is not a zstd frame over a CBOR sequence of records, or is larger than the limits.
        TranscriptError: The file is missing, not regular or oversized.
    """
    packed = read_file(path, max_bytes=limits.records)
    data = expand_cbor(packed, max_bytes=limits.records, max_items=limits.items)
    values = decode_cbor_sequence(data, max_length=limits.steps, max_items=limits.items)
    return [StepRecord.from_map(value) for value in values]


def pack_logs(logs: Sequence[bytes]) -> bytes:
    """Returns the contents of a rounding file: zstd over the CBOR sequence of encoded logs (byte strings)."""
    return compress(b"".join(cbor(log) for log in logs))


def read_logs(path: Path, limits: Limits) -> list[bytes]:
    """Reads a rounding file.

    Raises:
        FormatError: It is not a zstd frame over a CBOR sequence of byte strings, or is larger than the limits.
        TranscriptError: The file is missing, not regular or oversized.
    """
    data = decompress(read_file(path, max_bytes=limits.rounding), max_bytes=limits.rounding)
    logs: list[bytes] = []
    for log in decode_cbor_sequence(data, max_length=limits.steps):
        if type(log) is not bytes:
            raise FormatError(f"{path.name} holds something other than rounding logs; fetch it again")
        logs.append(log)
    return logs


def open_batches(path: Path, steps: range, limits: Limits) -> TensorFile:
    """Opens a batches file and checks that its names belong to `steps`.

    Raises:
        FormatError: It is not a tensor file, or a name is not `<step>/batch/<path>` or `<step>/free/<name>`.
        TranscriptError: The file is missing, not regular or oversized.
    """
    file = TensorFile(path, limits)
    for key in file:
        match = re.match(r"(0|[1-9][0-9]{0,8})/(batch|free)/", key)
        if not match or int(match[1]) not in steps:
            raise FormatError(
                f"{path.name} holds {key[:80]!r}, which belongs to no step of its segment; fetch it again"
            )
    return file


def read_batch(file: TensorFile, step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns (batch, free) tensors of `step` by their names, in host memory."""
    batch, undeclared = (
        {key.removeprefix(prefix): file.read(key) for key in file.below(str(step)) if key.startswith(prefix)}
        for prefix in (f"{step}/batch/", f"{step}/free/")
    )
    return batch, undeclared
