"""The structure of programs in bits: a reader can rebuild every tape, and whoever spells data with structure pays."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weighbridge.core.errors import TapeError
from weighbridge.program.adaptive_code import AdaptiveCode
from weighbridge.program.structure_code import WORDS, StructureCode
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Input, Node, Tape

GOLDEN = Path(__file__).parents[2] / "golden"


class Written(AdaptiveCode):
    """Keeps what is coded, in which contexts, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols: list[tuple[tuple[Hashable, ...], Hashable]] = []

    def bits(self, symbol: Hashable, contexts: Iterable[Hashable], spelled: Callable[[], float] | float) -> float:
        self.symbols.append((tuple(contexts), symbol))
        return super().bits(symbol, self.symbols[-1][0], spelled)


def tapes_of(name: str) -> list[Tape]:
    transcript = Transcript.open(GOLDEN / name)
    digests = dict.fromkeys(record.tape for record in transcript.records())
    return [Tape.decode(transcript.tape(digest)) for digest in digests]


def written(tapes: list[Tape]) -> list[tuple[tuple[Hashable, ...], Hashable]]:
    structure = StructureCode()
    code = Written()
    structure.code = structure.names._code = code
    for tape in tapes:
        structure.add(tape)
    return code.symbols


def changed(tape: Tape, chance: random.Random) -> Tape:
    """The tape with one thing changed that may reach values."""
    nodes, refs = list(tape.nodes), list(tape.refs)
    at = chance.randrange(len(nodes))
    node, index = nodes[at], chance.choice(sorted({i for each in nodes for i in _references(each)}))
    slot, dtype, size, stride, offset = refs[index]
    match chance.randrange(8):
        case 0:
            nodes[at] = node._replace(op=chance.choice([n.op for n in nodes if n.op != node.op]))
        case 1:
            nodes[at] = node._replace(args=(*node.args, chance.choice([None, True, 7, ("l", (1, 2))])))
        case 2:
            refs[index] = (slot, dtype, size, stride, offset + 1)
        case 3 if any(ref[0] != slot for ref in refs):
            refs[index] = (chance.choice([r[0] for r in refs if r[0] != slot]), dtype, size, stride, offset)
        case 4:
            nodes.insert(at, node)
        case 5:
            nodes[at] = node._replace(draw=(3 + chance.randrange(1 << 40), 0))
        case 6:
            return replace(tape, survivors=[*tape.survivors, (refs[index][0], "more")])
        case _:
            item = chance.choice(tape.inputs)
            inputs = [i if i != item else Input(i.slot, i.bytes + 4, i.origin, i.name) for i in tape.inputs]
            return replace(tape, inputs=inputs)
    return replace(tape, nodes=nodes, refs=refs)


@pytest.mark.parametrize("name", ["digits", "bfloat16", "chance"])
def test_a_reader_can_tell_every_tape_from_every_other(name: str) -> None:
    """Up to the first symbol that differs, both descriptions use the same contexts: a reader can follow them."""
    chance = random.Random(3)
    first, second, *_ = tapes_of(name)
    honest = written([first, second])
    tried = 0
    while tried < 40:
        other_tape = changed(second, chance)
        try:
            Tape.decode(other_tape.encode())
        except TapeError:
            continue  # it names what does not exist
        tried += 1
        other = written([first, other_tape])
        at = next((n for n, (a, b) in enumerate(zip(honest, other, strict=False)) if a != b), None)
        assert at is not None, "the descriptions are the same, or one is the beginning of the other"
        assert honest[at][0] == other[at][0], "the contexts depend on what a reader cannot know yet"


def _references(node: Node) -> list[int]:
    found: list[int] = [o for o in node.outputs if o is not None]

    def look(value: Any) -> None:
        if isinstance(value, tuple):
            if len(value) == 2 and value[0] == "t":
                found.append(value[1])
            for each in value:
                look(each)

    look((node.args, tuple(node.kwargs.values())))
    return found


@pytest.mark.parametrize("name", ["digits", "bfloat16"])
def test_what_no_value_depends_on_is_free(name: str) -> None:
    """Module paths, names, the order of the table of references, and when storages die that are no state."""
    tapes = tapes_of(name)
    names = {i.name for t in tapes for i in t.inputs} | {name for t in tapes for _, name in t.survivors}
    other = {n: n if n.startswith("~") else f"x{k:05d}" for k, n in enumerate(sorted(names))}
    plain = []
    for tape in tapes:
        turned = {len(tape.refs) - 1 - i: ref for i, ref in enumerate(tape.refs)}
        plain.append(
            replace(
                tape,
                nodes=[n._replace(**_turned(n, len(tape.refs) - 1), path=None) for n in tape.nodes],
                refs=[turned[i] for i in range(len(tape.refs))],
                inputs=[replace(i, name=other[i.name]) for i in tape.inputs],
                survivors=[(slot, other[n]) for slot, n in tape.survivors],
                frees=[(at, s) for at, s in tape.frees if s in {i.slot for i in tape.inputs}],
                paths=[],
            )
        )
    as_recorded, as_changed = StructureCode(), StructureCode()
    assert [as_recorded.add(t).bits for t in tapes] == [as_changed.add(t).bits for t in plain]


def _turned(node: Node, last: int) -> dict[str, Any]:
    def turn(value: Any) -> Any:
        if isinstance(value, tuple):
            if len(value) == 2 and value[0] == "t":
                return ("t", last - value[1])
            return tuple(map(turn, value))
        return value

    return {
        "args": turn(node.args),
        "kwargs": {k: turn(v) for k, v in node.kwargs.items()},
        "outputs": tuple(None if o is None else last - o for o in node.outputs),
    }


def test_a_tape_that_is_known_or_nearly_so_is_cheap() -> None:
    first, second, *_ = tapes_of("bfloat16")
    structure = StructureCode()
    structure.add(first)
    new = structure.add(second).bits
    assert structure.add(second).bits < new / 50
    at = next(i for i, node in enumerate(second.nodes) if node.op == "add_.Tensor")
    nodes = [*second.nodes[:at], second.nodes[at]._replace(op="sub_.Tensor"), *second.nodes[at + 1 :]]
    assert structure.add(replace(second, nodes=nodes)).bits < 400


def spelling(data: bytes) -> Tape:
    """A program that writes any bytes: it strings references into a table of all 256 together."""
    size = len(data)
    refs = [(0, "u8", (1,), (1,), value) for value in range(256)]
    node = Node("cat.default", (("l", tuple(("t", value) for value in data)),), {}, (256,), ((1, size),))
    return Tape(
        inputs=[Input(0, 256, "state", "table")], refs=[*refs, (1, "u8", (size,), (1,), 0)], nodes=[node],
        survivors=[(1, "weights")],
    )  # fmt: skip


@pytest.mark.parametrize("size", [200, 2000])
def test_spelling_bytes_with_references_costs_their_bits(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert 8 * size < StructureCode().add(spelling(data)).bits < 12 * size + 4096
    assert StructureCode().add(spelling(bytes(size))).bits < size + 256, "zeros are no choice"


@pytest.mark.parametrize("where", ["operands", "strides", "offsets"])
def test_spelling_with_integers_costs_their_bits(where: str) -> None:
    chance = random.Random(5)
    numbers = [chance.getrandbits(40) for _ in range(100)]
    nodes, refs = [], [(0, "f32", (1,), (1,), 0)]
    for number in numbers:
        if where == "operands":
            nodes.append(Node("index_select.default", (("t", 0), 0, number), {}, (0,)))
        else:
            stride, offset = (number, 0) if where == "strides" else (1, number)
            refs.append((0, "f32", (1,), (stride,), offset))
            nodes.append(Node("neg_.default", (("t", len(refs) - 1),), {}, (len(refs) - 1,)))
    tape = Tape(inputs=[Input(0, 1 << 50, "state", "w")], refs=refs, nodes=nodes)
    assert 40 * 100 < StructureCode().add(tape).bits < 70 * 100


def test_words_are_no_more_than_their_code_has_room_for() -> None:
    assert len(set(WORDS)) == len(WORDS) <= 64
