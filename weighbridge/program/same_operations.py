"""Whether two programs are the same operations on the same data, in whatever order.

PyTorch calls operations within expressions such as `-0.5 * grad * result.pow(3)` (the derivative of `rsqrt`) or
`make_tuple(stack(hidden), stack(cell))` (the end of an LSTM). C++ leaves open in which order operands and arguments are
evaluated: GCC begins with the last on x86-64 and with the first on ARM. So one program has another tape on either. It
replays on both all the same, since a tape says in which order its operations ran.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.numerics.rule_table import RULES, Kind, base_name
from weighbridge.numerics.schemas import mutated
from weighbridge.program.operands import resolve
from weighbridge.transcript.tape import RESIZE, Node, Tape, references

Label = bytes


def digest_of_operations(tape: Tape) -> bytes:
    """Returns a digest that depends on a program's operations and data flow, and not on an order that neither fixes.

    Each operation is labelled by its name, its plain operands, and the labels of what last wrote to the memory that it
    uses. Two programs have the same labels only if every operation computes from the same things. Left out, beside the
    order, is what names things: numbers of storages and values, module paths, and when memory that is not used any more
    is let go.

    Args:
        tape: A decoded tape.

    Returns:
        The digest, 32 bytes.

    Raises:
        TapeError: It names an operation that is not allowed.
    """
    return _Labels(tape).digest()


class _Labels:
    """The labels of a tape's storages and operations."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._views = {RESIZE: False}
        self._changes = {RESIZE: frozenset({"self"})}
        self._names: dict[str, tuple[str, ...]] = {RESIZE: ("self", "size")}
        self._memory: dict[int, Label] = {}
        self._content: dict[int, Label] = {}
        for item in tape.inputs:
            self._memory[item.slot] = self._content[item.slot] = _label(item.origin, _kept(item.name), item.bytes)
        self._ordered = 0
        self._found = Counter(self._operation(node) for node in tape.nodes)

    def digest(self) -> bytes:
        """Returns the digest of all labels."""
        tape = self._tape
        left = [[_kept(name), self._memory[slot], self._content[slot]] for slot, name in tape.survivors]
        changed = [[self._memory[item.slot], self._content[item.slot]] for item in tape.inputs]
        batch = [[name, self._memory[ref[0]], *ref[1:]] for name, ref in tape.batch_views]
        gone = [self._memory[slot] for _, slot in tape.frees]
        parts = [sorted(self._found.items()), sorted(left), sorted(changed), sorted(batch, key=str), sorted(gone)]
        return bytes_digest(cbor([*parts, tape.values, tape.hosts]))

    def _operation(self, node: Node) -> Label:
        """Labels an operation and what it writes to."""
        self._learn(node.op)
        bound = dict([*zip(self._names[node.op], node.args, strict=False), *node.kwargs.items()])
        operands = [[name, self._spelled(value, self._views[node.op])] for name, value in sorted(bound.items())]
        ordered = not node.op.startswith("aten::") and "::" in node.op
        self._ordered += ordered
        label = _label(
            node.op, operands, [size for _, size in node.births], node.draw, self._ordered if ordered else 0,
            [None if o is None else self._tape.refs[o][1:] for o in node.outputs],
        )  # fmt: skip
        for place, (slot, _) in enumerate(node.births):
            self._memory[slot] = self._content[slot] = _label(label, place)
        for name in self._changes[node.op] & bound.keys():
            for reference in references(bound[name]):
                self._content[self._tape.refs[reference][0]] = label
        return label

    def _learn(self, name: str) -> None:
        if name not in self._names:
            op = resolve(name)
            base, overload = base_name(op)
            rule = RULES.get(f"{base}.{overload}")
            self._names[name] = tuple(argument.name for argument in op._schema.arguments)
            self._changes[name] = frozenset(mutated(op))
            self._views[name] = rule is not None and rule.kind is Kind.VIEW

    def _spelled(self, value: Any, view: bool) -> Any:
        """An operand with labels in the place of references; a view depends on the memory and not on its content."""
        match value:
            case ("t", int(index)):
                slot, *form = self._tape.refs[index]
                return ["t", self._memory[slot], None if view else self._content[slot], *form]
            case ("v", int()):
                return ["v"]
            case tuple(items):
                return [self._spelled(each, view) for each in items]
        return value


def _label(*parts: Any) -> Label:
    return bytes_digest(cbor(list(parts)))


def _kept(name: str) -> str:
    """A name of state without the number of a storage, which depends on the order of operations."""
    return name.rpartition("/")[0] if name.startswith(("~", "kept/")) else name
