"""The leaves of a step's tree: one for what enters, one for each operation, one for the state that the step leaves.

A leaf binds an operation with all that it depends on and all that it does: counters and memory before and after. So
two parties whose leaves agree up to one place agree on everything before the operation there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import DIGEST_SIZE, cbor, record_digest
from weighbridge.core.errors import FormatError
from weighbridge.transcript.steps import Scalar, StepRecord
from weighbridge.transcript.tape import Node, Tape

ENTER, FINISH = "enter", "finish"
"""What stands in the place of an operation in the first leaf and the last one."""

NO_INPUT = bytes(DIGEST_SIZE)
"""What a course has in the place of `input_digest` of a step that cannot be disputed."""

MAX_LEAF = 1 << 24
"""Most bytes of a leaf."""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """How far a step is between two operations.

    Attributes:
        rng: Generator number to its counter, of the generators that drew in the step.
        entries: Log cursor: entries of the rounding log that were followed.
        chosen: Ledger of roundings: bits that these entries state.
        flops: FLOPs of the operations so far, modulo 2^64.
        checked: Checksum index: results with a checksum so far.
        hosts: Values that the program read back so far.
        rounded: Elements rounded so far.
    """

    rng: dict[int, int] = field(default_factory=dict)
    entries: int = 0
    chosen: int = 0
    flops: int = 0
    checked: int = 0
    hosts: int = 0
    rounded: int = 0


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One place of a step's tree.

    Attributes:
        index: Which place.
        node: The operation as the tape has it; in the first leaf `enter` with batch digest and generators' starts, in
            the last one `finish`.
        values: Plain values among the operands; in the first leaf the step's whole vector of values.
        host: Values that the operation read back.
        results: (digest, checksum) of every result with a checksum that the operation made, in order; an operation
            composed of others has several.
        before: Counters before the operation.
        after: Counters after it.
        memory: Memory root before the operation and before the frees that stand there; in the first leaf the state
            digest (32 bytes).
        left: Memory root after it; in the last leaf the state digest.
    """

    index: int
    node: Any
    values: list[Scalar]
    host: list[Scalar]
    results: list[tuple[bytes, int]]
    before: Counters
    after: Counters
    memory: bytes
    left: bytes

    def to_cbor(self) -> bytes:
        """Returns the leaf as deterministic CBOR."""
        entries = {name: getattr(self, name) for name in _LEAF}
        return cbor(entries | {"before": _written(self.before), "after": _written(self.after)})

    def digest(self) -> bytes:
        """Returns the leaf's hash (32 bytes)."""
        return leaf_hash(self.to_cbor())

    @classmethod
    def from_cbor(cls, data: bytes) -> Leaf:
        """Reads what `to_cbor` wrote.

        Raises:
            FormatError: It is no leaf.
        """
        if len(data) > MAX_LEAF:
            raise FormatError(f"A leaf of {len(data)} bytes is larger than {MAX_LEAF}; ask for it again.")
        raw = decode_cbor(data)
        try:
            if set(raw) != {each.name for each in fields(cls)}:
                raise TypeError("fields")
            leaf = cls(
                index=_natural(raw["index"]),
                node=raw["node"],
                values=_scalars(raw["values"]),
                host=_scalars(raw["host"]),
                results=[(_digest(digest), _natural(checksum)) for digest, checksum in raw["results"]],
                before=_counters(raw["before"]),
                after=_counters(raw["after"]),
                memory=_digest(raw["memory"]),
                left=_digest(raw["left"]),
            )
            again = leaf.to_cbor()
        except (TypeError, ValueError, AttributeError):
            raise FormatError("A leaf has not the fields of a leaf; ask for it again.") from None
        if again != data:
            raise FormatError("A leaf is not in its one encoding; ask for it again.")
        return leaf


def leaf_hash(data: bytes) -> bytes:
    """Returns the hash of an encoded leaf (32 bytes)."""
    return record_digest("dispute-leaf/1", data)


def tree_root(hashes: Sequence[bytes]) -> bytes:
    """Returns the root of a step's tree (32 bytes): a digest of the hashes of all its leaves, in order.

    A party shows all leaf hashes at once, so that the tree needs no more levels.
    """
    return record_digest("dispute-tree/1", b"".join(hashes))


def encoded(node: Node) -> list[Any]:
    """Returns an operation as a leaf holds it."""
    return [node.op, node.args, node.kwargs, node.outputs, node.births, node.draw, node.path]


def places(tape: Tape) -> int:
    """Returns how many leaves the tree of a tape's step has."""
    return len(tape.nodes) + 2


def values_of(node: Node, values: Sequence[Scalar]) -> list[Scalar]:
    """Returns the plain values among an operation's operands, in order."""
    found: list[Scalar] = []

    def walk(operand: Any) -> None:
        if isinstance(operand, tuple):
            if len(operand) == 2 and operand[0] == "v" and type(operand[1]) is int:
                found.extend(values[operand[1] : operand[1] + 1])
            else:
                for each in operand:
                    walk(each)

    walk((node.args, tuple(node.kwargs.values())))
    return found


def input_digest(record: StepRecord) -> bytes:
    """Returns a digest of what a step begins with besides the state (32 bytes).

    That is its tape, its batch, the starts of its generators and its plain values.
    """
    starts = sorted((name, pair[0]) for name, pair in record.rng.items())
    return record_digest("dispute-input/1", [record.kind, record.tape, record.batch, starts, list(record.values)])


def first_difference(one: Sequence[bytes], other: Sequence[bytes]) -> int | None:
    """Returns the first place at which two lists of leaf hashes differ, or one of them ends; None if they are equal."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def _natural(raw: Any) -> int:
    if type(raw) is not int or not 0 <= raw < 1 << 64:
        raise ValueError("number")
    return raw


def _digest(raw: Any) -> bytes:
    if type(raw) is not bytes or len(raw) != DIGEST_SIZE:
        raise ValueError("digest")
    return raw


def _scalars(raw: Any) -> list[Scalar]:
    if type(raw) is not list or not all(type(each) in (int, float, bool) for each in raw):
        raise ValueError("values")
    return raw


_LEAF, _COUNTERS = (tuple(each.name for each in fields(kind)) for kind in (Leaf, Counters))


def _written(counters: Counters) -> dict[str, Any]:
    return {name: getattr(counters, name) for name in _COUNTERS} | {"rng": sorted(counters.rng.items())}


def _counters(raw: Any) -> Counters:
    if set(raw) != {each.name for each in fields(Counters)}:
        raise TypeError("fields")
    rng = {_natural(number): _natural(at) for number, at in raw["rng"]}
    return Counters(rng=rng, **{name: _natural(value) for name, value in raw.items() if name != "rng"})
