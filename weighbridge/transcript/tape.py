"""Tapes: the recorded ATen program of one step, as data.

A tape names storages by *slot* (an integer in order of first appearance) and tensors by *reference*: slot, dtype, size,
stride, offset. Everything that may change from step to step without changing the program is outside it: floats and
scalar operands are hoisted into the step's values vector, host values into another, random draws are relative to the
step's counters, names of what an earlier step left behind are relative to this step. So steps with the same structure
share one tape, and a tape is content-addressed by the digest of its bytes.

Decoding is strict: a tape is hostile input. `Tape.decode` checks every slot, reference, birth and free before anything
runs; which operations are allowed is the executor's business. Format: docs/formats/tape.md.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from weighbridge.core.bounded import DEFAULT_LIMITS, decode_cbor
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import FormatError, TapeError

VERSION = 2
RESIZE = "weighbridge::resize.default"
MAX_BYTES = 256 << 20

DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
DTYPE_NAMES = {v: k for k, v in DTYPES.items()}
MEMORY_FORMATS = {
    "contiguous": torch.contiguous_format, "preserve": torch.preserve_format,
    "channels_last": torch.channels_last, "channels_last_3d": torch.channels_last_3d,
}  # fmt: skip
MEMORY_FORMAT_NAMES = {v: k for k, v in MEMORY_FORMATS.items()}

Ref = tuple[int, str, tuple[int, ...], tuple[int, ...], int]
"""A tensor: (slot, dtype name, size, stride, offset in elements)."""


@dataclass(frozen=True, slots=True)
class Input:
    """A storage that the step reads or frees but did not make.

    Attributes:
        slot: Its slot.
        bytes: Its size.
        origin: `state`, `batch`, `free`, or `dropped`: state that died before the step began and that no reference
            may name.
        name: Name of the state, batch path list joined by newline, or name of the undeclared tensor; state kept from an
            earlier step is `~n/slot`, n steps ago.
    """

    slot: int
    bytes: int
    origin: str
    name: str


class Node(NamedTuple):
    """One operation.

    Attributes:
        op: `name.overload` in the `aten` namespace.
        args: Encoded positional operands.
        kwargs: Encoded keyword operands.
        outputs: For each returned value: index of its reference, or None for what is not a tensor.
        births: Storages that the operation made: (slot, bytes).
        draw: For random operations: (generator number, its counter less that of its first draw in this step).
        path: Where in the program it ran, by the Prover's word: an index into the tape's paths, or None.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[int | None, ...]
    births: tuple[tuple[int, int], ...] = ()
    draw: tuple[int, int] | None = None
    path: int | None = None


@dataclass(slots=True)
class Tape:
    """The program of one step.

    Attributes:
        inputs: Storages that came from outside, in order of first use.
        refs: Distinct tensor references.
        nodes: Operations in order.
        frees: (operations complete, slot): the storage died then.
        survivors: (slot, state name) of storages made here that outlive the step.
        views: Named views on state after the step: (tensor name, state name, dtype, size, stride, offset); batch views
            have state name `batch`, and slot numbers stand for their storage in `inputs`.
        values: Length of the step's values vector.
        hosts: Number of host values.
        paths: Distinct module paths in order of first use, for locating only: nothing checks that they are true.
    """

    inputs: list[Input] = field(default_factory=list)
    refs: list[Ref] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    frees: list[tuple[int, int]] = field(default_factory=list)
    survivors: list[tuple[int, str]] = field(default_factory=list)
    batch_views: list[tuple[str, Ref]] = field(default_factory=list)
    values: int = 0
    hosts: int = 0
    paths: list[str] = field(default_factory=list)

    def encode(self) -> bytes:
        """Returns the tape's canonical bytes; `Tape.decode(t.encode()) == t`."""
        return cbor(
            {
                "v": VERSION,
                "inputs": [[i.slot, i.bytes, i.origin, i.name] for i in self.inputs],
                "refs": self.refs,
                "nodes": [[n.op, n.args, n.kwargs, n.outputs, n.births, n.draw, n.path] for n in self.nodes],
                "frees": self.frees,
                "survivors": self.survivors,
                "batch": self.batch_views,
                "values": self.values,
                "hosts": self.hosts,
                "paths": self.paths,
            }
        )

    def path_of(self, op: int) -> str | None:
        """The module path of an operation, as the Prover claims it; None where there is none."""
        path = self.nodes[op].path if 0 <= op < len(self.nodes) else None
        return None if path is None else self.paths[path]

    @property
    def digest(self) -> bytes:
        """The content address."""
        return bytes_digest(self.encode())

    def largest_footprint(self) -> int:
        """Bytes of all storages alive at the same time, at most."""
        sizes = {i.slot: i.bytes for i in self.inputs if i.origin != "dropped"}
        alive = peak = sum(sizes.values())
        frees: dict[int, list[int]] = {}
        for at, slot in self.frees:
            frees.setdefault(at, []).append(slot)
        for index, node in enumerate(self.nodes):
            for slot in frees.get(index, ()):
                alive -= sizes.get(slot, 0)
            for slot, size in (*node.births, *resized(self, node)):
                alive += size - (sizes.get(slot, 0) if node.op == RESIZE else 0)
                sizes[slot] = size
            peak = max(peak, alive)
        return peak

    def touched(self, op: int) -> int:
        """Bytes of the storages that operation `op` reads, writes or makes; 0 if there is no such operation."""
        if not 0 <= op < len(self.nodes):
            return 0
        node = self.nodes[op]
        sizes = {i.slot: i.bytes for i in self.inputs}
        sizes.update(birth for n in self.nodes[: op + 1] for birth in n.births)
        named = [*references((node.args, tuple(node.kwargs.values()))), *(o for o in node.outputs if o is not None)]
        return sum(sizes.get(slot, 0) for slot in {self.refs[index][0] for index in named})

    @staticmethod
    def decode(data: bytes) -> Tape:
        """Parses and checks a tape.

        Raises:
            TapeError: If anything about it is not as `encode` would have written it.
        """
        if len(data) > MAX_BYTES:
            raise TapeError(f"the tape has {len(data)} bytes, more than {MAX_BYTES}")
        try:
            # Refuses tags: shared references would grow when written out again.
            raw = decode_cbor(data, max_items=DEFAULT_LIMITS.items)
            tape = Tape(
                inputs=[Input(_natural(s), _natural(b), _text(o), _text(n)) for s, b, o, n in raw["inputs"]],
                refs=[_ref(r) for r in raw["refs"]],
                nodes=[_node(n) for n in raw["nodes"]],
                frees=[(_natural(a), _natural(s)) for a, s in raw["frees"]],
                survivors=[(_natural(s), _text(n)) for s, n in raw["survivors"]],
                batch_views=[(_text(n), _ref(r)) for n, r in raw["batch"]],
                values=_natural(raw["values"]),
                hosts=_natural(raw["hosts"]),
                paths=[_text(p) for p in raw["paths"]],
            )
            canonical = tape.encode()
        except TapeError:
            raise
        except (FormatError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as e:
            raise TapeError(f"the tape is not well-formed: {type(e).__name__}: {str(e)[:200]}") from None
        if canonical != data:
            raise TapeError("the tape is not in canonical form")
        _check(tape)
        return tape


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise TapeError(f"expected a natural number, found {str(value)[:40]!r}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > 65536:
        raise TapeError("expected a text")
    return value


def _ref(raw: Any) -> Ref:
    slot, dtype, size, stride, offset = raw
    if dtype not in DTYPES or len(size) != len(stride) or len(size) > 32:
        raise TapeError("a tensor reference is malformed")
    return _natural(slot), dtype, tuple(_natural(n) for n in size), tuple(_natural(n) for n in stride), _natural(offset)


def _freeze(value: Any, depth: int = 0) -> Any:
    if depth > 8:
        raise TapeError("operands are nested too deeply")
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(v, depth + 1) for v in value)
    if value is None or type(value) in (int, bool, str):
        return value
    raise TapeError(f"an operand has the type {type(value).__name__}")


def _node(raw: Any) -> Node:
    op, args, kwargs, outputs, births, draw, path = raw
    if not isinstance(kwargs, dict):
        raise TapeError("keyword operands are not a map")
    return Node(
        op=_text(op),
        args=tuple(_freeze(a) for a in args),
        kwargs={_text(k): _freeze(v) for k, v in kwargs.items()},
        outputs=tuple(None if o is None else _natural(o) for o in outputs),
        births=tuple((_natural(s), _natural(b)) for s, b in births),
        draw=None if draw is None else (_natural(draw[0]), _signed(draw[1])),
        path=None if path is None else _natural(path),
    )


def _signed(value: Any) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise TapeError("a draw offset is malformed")
    return value


def extent(ref: Ref) -> int:
    """Bytes of storage that a reference needs, counted from the storage's start."""
    _, dtype, size, stride, offset = ref
    if math.prod(size) == 0:
        return 0
    return (offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))) * DTYPES[dtype].itemsize


_LASTING = re.compile(r"kept/(0|[1-9][0-9]{0,8})/(0|[1-9][0-9]{0,17})")
_KEPT = re.compile(r"~(0|[1-9][0-9]{0,8})/(0|[1-9][0-9]{0,17})")


def absolute_name(name: str, step: int) -> str:
    """Resolves `~n/slot`, what was left behind n steps before `step`, to `kept/<step>/<slot>`.

    Raises:
        TapeError: It is malformed, or from before the first step.
    """
    if not name.startswith(("~", "kept/")) or _LASTING.fullmatch(name):
        return name
    match = _KEPT.fullmatch(name)
    if match is None or int(match[1]) > step:
        raise TapeError(f"the state name {name[:80]!r} is malformed")
    return f"kept/{step - int(match[1])}/{match[2]}"


def references(value: Any) -> list[int]:
    """Returns the reference indices in an encoded operand."""
    if isinstance(value, tuple):
        if len(value) == 2 and value[0] == "t" and type(value[1]) is int:
            return [value[1]]
        return [r for v in value for r in references(v)]
    return []


def resized(tape: Tape, node: Node) -> list[tuple[int, int]]:
    """Returns (slot, new bytes) if a node resizes a storage, else nothing.

    Raises:
        TapeError: It names no storage, or no size.
    """
    if node.op != RESIZE:
        return []
    match node.args:
        case (("t", index), size) if type(index) is int and 0 <= index < len(tape.refs) and not node.kwargs:
            if 0 in tape.refs[index][2] and not node.births and not node.outputs:
                return [(tape.refs[index][0], _natural(size))]
    raise TapeError("a storage is resized by other operands than a tensor without elements and a number of bytes")


def _check(tape: Tape) -> None:
    """Checks that every reference lies inside a storage that exists when it is used."""
    sizes: dict[int, int] = {}
    for i in tape.inputs:
        if i.slot in sizes:
            raise TapeError(f"slot {i.slot} enters twice")
        if i.origin not in ("state", "batch", "free", "dropped"):
            raise TapeError(f"slot {i.slot} has the unknown origin {i.origin!r}")
        if i.origin != "dropped":
            sizes[i.slot] = i.bytes
    frees: dict[int, list[int]] = {}
    for at, slot in tape.frees:
        frees.setdefault(at, []).append(slot)

    def use(index: int) -> None:
        if not 0 <= index < len(tape.refs):
            raise TapeError(f"reference {index} does not exist")
        ref = tape.refs[index]
        if ref[0] not in sizes:
            raise TapeError(f"slot {ref[0]} is used while it does not exist")
        if extent(ref) > sizes[ref[0]]:
            raise TapeError(f"a reference reaches past the end of slot {ref[0]}", code="tape.out_of_bounds")

    for _, ref in tape.batch_views:
        if ref[0] not in sizes or extent(ref) > sizes[ref[0]]:
            raise TapeError("a batch view lies outside its storage", code="tape.out_of_bounds")
    for index, node in enumerate(tape.nodes):
        for slot in frees.pop(index, ()):
            if sizes.pop(slot, None) is None:
                raise TapeError(f"slot {slot} is freed while it does not exist")
        for r in references((node.args, tuple(node.kwargs.values()))):
            use(r)
        for slot, size in node.births:
            if slot in sizes:
                raise TapeError(f"slot {slot} is born twice")
            sizes[slot] = size
        sizes.update(resized(tape, node))
        for o in node.outputs:
            if o is not None:
                use(o)
    for slot in frees.pop(len(tape.nodes), ()):
        if sizes.pop(slot, None) is None:
            raise TapeError(f"slot {slot} is freed while it does not exist")
    if frees:
        raise TapeError("a storage is freed after the end of the step")
    _check_paths(tape)
    for slot, _ in tape.survivors:
        if slot not in sizes:
            raise TapeError(f"slot {slot} survives but does not exist")


def _check_paths(tape: Tape) -> None:
    """Checks that the table of paths has each path once, in order of first use, so that a tape has one encoding."""
    used = 0
    for node in tape.nodes:
        if node.path is not None:
            if node.path > used:
                raise TapeError("a module path is named before those that stand in the table before it")
            used = max(used, node.path + 1)
    if used != len(tape.paths) or len(set(tape.paths)) != used:
        raise TapeError("the table of module paths is not that of the paths that the operations name")
