"""Where a difference is: the module of an operation, and the operations and inputs that its operands came from.

Pure reading of a tape. Paths are the Prover's word (docs/formats/tape.md); what an operand came from is not: it follows
from the operations themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weighbridge.core.errors import WeighbridgeError
from weighbridge.numerics.schemas import Op, mutated
from weighbridge.program.operands import resolve
from weighbridge.transcript.tape import DTYPES, Input, Node, Ref, Tape, extent, references

MAX_UPSTREAM = 32
"""Sources listed for an operation; one that stacks hundreds of tensors has more."""

Span = tuple[int, int, int]
"""Bytes of a storage: (slot, first, one after the last)."""


def locate(tape: Tape, op: int) -> dict[str, Any]:
    """Says where an operation stands in the program.

    Args:
        tape: The program.
        op: Index of one of its operations.

    Returns:
        `path` (text or None) and `upstream`: for each operand, in order, what it came from, at most `MAX_UPSTREAM`
        entries of the keys `operand` (name in the operation's schema), `origin` (`operation`, `random`: an operation
        that draws; `state`, `batch`, `free`: as it entered; `value`: a number of the step), `name` (of the operation,
        state, batch tensor; index of the value), `op` and `path` (of an operation, else None), `shape`, `dtype`.
    """
    return {"path": tape.path_of(op), "upstream": _upstream(tape, op)}


def _upstream(tape: Tape, op: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    node = tape.nodes[op]
    if node.draw is not None:
        found.append(_entry("", "random", f"generator {node.draw[0]}, draw {node.draw[1]} of the step"))
    for name, encoded in operands(node):
        for kind, index in _leaves(encoded):
            if kind == "v":
                found.append(_entry(name, "value", str(index)))
                continue
            ref = tape.refs[index]
            for source in _sources(tape, op, ref):
                found.append(_source(tape, name, ref, source))
                if len(found) >= MAX_UPSTREAM:
                    return found
    return found


def operands(node: Node) -> list[tuple[str, Any]]:
    """Returns (name in the operation's schema, encoded operand) of a node's operands."""
    op = _resolve(node)
    arguments = [] if op is None else [a.name for a in op._schema.arguments]
    names = arguments + [str(i) for i in range(len(arguments), len(node.args))]
    return [*zip(names, node.args, strict=False), *node.kwargs.items()]


def _leaves(encoded: Any) -> Iterator[tuple[str, int]]:
    """Yields the references ("t", i) and values ("v", i) in an encoded operand."""
    if isinstance(encoded, tuple):
        if len(encoded) == 2 and encoded[0] in ("t", "v") and type(encoded[1]) is int:
            yield encoded
        else:
            for each in encoded:
                yield from _leaves(each)


def _span(ref: Ref) -> Span:
    return ref[0], ref[4] * DTYPES[ref[1]].itemsize, extent(ref)


def _overlap(a: Span, b: Span) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def _sources(tape: Tape, op: int, ref: Ref) -> Iterator[int | Input]:
    """Yields what wrote a tensor before an operation, latest first, until one wrote all of it."""
    wanted = _span(ref)
    if wanted[1] >= wanted[2]:
        return
    for index in range(op - 1, -1, -1):
        node = tape.nodes[index]
        written = [span for span in _written(tape, node) if _overlap(span, wanted)]
        if written:
            yield index
        if any(a <= wanted[1] and b >= wanted[2] for _, a, b in written) or any(s == ref[0] for s, _ in node.births):
            return
    yield from (item for item in tape.inputs if item.slot == ref[0])


def _written(tape: Tape, node: Node) -> list[Span]:
    """The parts of storages that an operation writes: what it makes, and the operands that it changes."""
    op = _resolve(node)
    changed = set() if op is None else set(mutated(op))
    born = {slot for slot, _ in node.births}
    refs = [tape.refs[o] for o in node.outputs if o is not None and tape.refs[o][0] in born]
    refs += [tape.refs[r] for name, value in operands(node) if name in changed for r in references(value)]
    return [_span(ref) for ref in refs]


def _resolve(node: Node) -> Op | None:
    try:
        return resolve(node.op)
    except WeighbridgeError:
        return None


def _source(tape: Tape, operand: str, ref: Ref, source: int | Input) -> dict[str, Any]:
    if isinstance(source, Input):
        return _entry(operand, source.origin, source.name.replace("\n", ", "), ref=ref)
    node = tape.nodes[source]
    kind = "operation" if node.draw is None else "random"
    return _entry(operand, kind, node.op, op=source, path=tape.path_of(source), ref=ref)


def _entry(
    operand: str, origin: str, name: str, *, op: int | None = None, path: str | None = None, ref: Ref | None = None
) -> dict[str, Any]:
    return {
        "operand": operand,
        "origin": origin,
        "name": name,
        "op": op,
        "path": path,
        "shape": None if ref is None else list(ref[2]),
        "dtype": None if ref is None else ref[1],
    }


def checked(raw: Any) -> dict[str, Any]:
    """Reads `path` and `upstream` from what a process that may have been taken over sent.

    Args:
        raw: A map that should have both.

    Raises:
        KeyError, TypeError, ValueError: It is something else; for the caller to turn into its own error.
    """
    return {
        "path": _text(raw["path"]),
        "upstream": [
            {
                **{key: str(_text(entry[key])) for key in ("operand", "origin", "name")},
                "op": None if entry["op"] is None else int(entry["op"]),
                "path": _text(entry["path"]),
                "shape": None if entry["shape"] is None else [int(n) for n in entry["shape"][:32]],
                "dtype": _text(entry["dtype"]),
            }
            for entry in raw["upstream"][:MAX_UPSTREAM]
        ],
    }


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError("expected a text")
    return value[:1000].encode(errors="replace").decode()  # half characters cannot be shown


def upstream_line(source: dict[str, Any]) -> str:
    """Returns an entry of `upstream` as a line for a person."""
    shape = "" if source["shape"] is None else f" {source['dtype']}{source['shape']}"
    what = f"{source['operand'] or 'itself'}{shape}"
    if source["op"] is not None:
        path = "" if source["path"] is None else f" in {source['path']}"
        drawn = ", which draws" if source["origin"] == "random" else ""
        return f"{what}: operation {source['op']} ({source['name']}){path}{drawn}"
    return f"{what}: {source['origin']} {source['name']}"
