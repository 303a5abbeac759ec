"""Numbers for what storages hold: equal for what equal operations make of equal contents.

So what a checkpoint computes a second time is what it was, and so is what ranks exchange a second time, if it is the
same on all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from weighbridge.execution.recognition.structure import read_by
from weighbridge.execution.recognition.values import Plan
from weighbridge.program.gradient_paths import makes_anew
from weighbridge.program.written_bytes import Coverage
from weighbridge.transcript.collectives import is_collective
from weighbridge.transcript.tape import Node, Ref, references

_OVERWRITING = frozenset({"copy_", "_foreach_copy_", "fill_", "zero_"})
"""Operations that read nothing of what they write to; so do those that are called with `out`."""


class Contents:
    """The contents of a tape's storages, while one goes through its operations.

    Attributes:
        exchanged: By collective that was gone through: a number, equal for those of this rank that are the same.
    """

    def __init__(self, plan: Plan, names: Mapping[int, str], same: Mapping[int, int]) -> None:
        """Prepares for the first operation.

        Args:
            plan: That of the tape.
            names: Slot to name.
            same: By collective: a number, different for those that are known to differ on some rank.
        """
        self._plan, self._tape, self._names, self._same = plan, plan.tape, names, same
        self.exchanged: dict[int, int] = {}
        self._now: dict[int, int] = {}
        self._count = 0
        self._known: dict[Any, int] = {}
        self._exchanges: dict[Any, int] = {}
        self._sources: dict[int, tuple[int, ...] | None] = {}
        """By contents: of which others they follow; None of what was there before, or came from other ranks."""
        self._slots: dict[int, int] = {}

    def of(self, slot: int) -> int:
        """Returns what a storage holds now."""
        if slot not in self._now:
            self._now[slot] = self._new(slot, None)
        return self._now[slot]

    def read(self, node: Node) -> list[int]:
        """Returns what an operation reads, one for each operand on which its results depend."""
        return [self.of(self._tape.refs[index][0]) for index in read_by(node)]

    def made(self, op: int, node: Node) -> list[int]:
        """Gives what an operation writes its contents: what equal operations made before, or others."""
        if is_collective(node):
            return self._exchange(op, node)
        sources = tuple(self._left(op)) if makes_anew(node) else tuple(self.read(node))
        written = sorted(self._plan.writes.get(op, ()))
        called = self._encoded((node.args, tuple(sorted(node.kwargs.items()))), self._overwritten(op, node))
        made = []
        for number, slot in enumerate(written):
            key = node.op, called, number
            if node.draw is not None:
                content = self._new(slot, sources)
            elif key in self._known:
                content = self._known[key]
            else:
                content = self._known[key] = self._new(slot, sources)
            made.append(content)
        self._now.update(zip(written, made, strict=True))
        return made

    def follow(self, contents: Iterable[int], known: frozenset[int]) -> bool:
        """Whether contents follow from known ones, constants and chance alone."""
        waiting = list(contents)
        seen = set(waiting)
        while waiting:
            content = waiting.pop()
            if content in known:
                continue
            sources = self._sources[content]
            if sources is None:
                return False
            waiting += [each for each in sources if each not in seen]
            seen.update(sources)
        return True

    def roots(self, contents: Iterable[int]) -> list[str]:
        """Names of the inputs from which contents follow, those of the step's batch first."""
        waiting, names = list(contents), set[str]()
        seen = set(waiting)
        while waiting:
            content = waiting.pop()
            sources = self._sources[content]
            if sources is None and (name := self._names.get(self._slots[content])):
                names.add(name)
            waiting += [each for each in sources or () if each not in seen]
            seen.update(sources or ())
        batch = {item.name for item in self._tape.inputs if item.origin in ("batch", "free")}
        return sorted(names, key=lambda name: (name not in batch, name))

    def covers(self, slot: int, refs: Iterable[Ref]) -> bool:
        """Whether references certainly show all of a storage."""
        covered = Coverage(self._plan.largest.get(slot, 0), doubted=True)
        return any([covered.add(ref) for ref in refs if ref[0] == slot])

    def _exchange(self, op: int, node: Node) -> list[int]:
        outs, ins = (references(side) for side in node.args[:2])
        key = (
            node.op,
            tuple(self._encoded(("t", index)) for index in ins),
            node.args[2:],
            self._same.get(op),
        )
        self.exchanged[op] = self._exchanges.setdefault(key, len(self._exchanges))
        refs = [self._tape.refs[index] for index in outs]
        made = []
        for number, slot in enumerate(dict.fromkeys(ref[0] for ref in refs)):
            own = tuple(ref[1:] for ref in refs if ref[0] == slot)
            before = None if self.covers(slot, refs) else self.of(slot)
            whole = "exchange", key, number, own, before
            if whole not in self._known:
                self._known[whole] = self._new(slot, None)
            self._now[slot] = self._known[whole]
            made.append(self._now[slot])
        return made

    def _left(self, op: int) -> Iterable[int]:
        """What there was in memory of which an operation writes a part."""
        places = self._plan.places.get(op, ())
        return [self.of(slot) for slot in dict.fromkeys(ref[0] for ref in places) if not self.covers(slot, places)]

    def _overwritten(self, op: int, node: Node) -> set[int]:
        """Slots of which nothing is left, and nothing read."""
        name, _, overload = node.op.partition(".")
        if name not in _OVERWRITING and not overload.endswith("out"):
            return set()
        places = self._plan.places.get(op, ())
        return {ref[0] for ref in places if self.covers(ref[0], places)} - {
            self._tape.refs[index][0] for index in _sources(node, overload)
        }

    def _encoded(self, value: Any, overwritten: Collection[int] = ()) -> Any:
        if isinstance(value, tuple):
            if len(value) == 2 and value[0] == "t" and type(value[1]) is int:
                slot, *window = self._tape.refs[value[1]]
                return (-1 if slot in overwritten else self.of(slot), *window)
            if len(value) == 2 and value[0] == "v":
                return "v"
            return tuple(self._encoded(each, overwritten) for each in value)
        return value

    def _new(self, slot: int, sources: tuple[int, ...] | None) -> int:
        self._count += 1
        self._sources[self._count] = sources
        self._slots[self._count] = slot
        return self._count


def _sources(node: Node, overload: str) -> Sequence[int]:
    """What an operation that overwrites something reads."""
    if overload.endswith("out"):
        return references(node.args)
    return references(node.args[1:])
