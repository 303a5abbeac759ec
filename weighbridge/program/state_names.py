"""Names of what enters a tape and of what survives it, in bits: which storage is meant, not what it is called.

A name selects content: a tensor of the batch, state that an earlier tape left. So a name that is known costs what it
takes to tell it from the other known ones, and less where it goes on from the name before. A new name costs the choice
among the names that are new in this tape, sorted, because the content behind them is described in that order.
"""

from __future__ import annotations

import re
from math import log2

from weighbridge.program.adaptive_code import AdaptiveCode, integer, natural
from weighbridge.transcript.tape import Tape

_RELATIVE = re.compile(r"(~|kept/)(0|[1-9][0-9]{0,17})/(0|[1-9][0-9]{0,17})")
_RULES = log2(5)


class _Space:
    """Names of one kind, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.pool: set[str] = set()
        self.last = -1
        self.rule = ""

    def learn(self, name: str) -> None:
        self.last = self.known.setdefault(name, len(self.known))
        self.pool.discard(name)


def space_of(origin: str) -> str:
    """Returns the kind of name that an input of some origin has."""
    return "state" if origin == "dropped" else origin


class Names:
    """What names were seen, over all tapes."""

    def __init__(self, code: AdaptiveCode) -> None:
        self._code = code
        self._spaces: dict[str, _Space] = {}
        self._slot = 0

    def begin(self, tape: Tape) -> float:
        """Notes the names that enter with a tape and are new; returns the bits of their number."""
        entering: dict[str, set[str]] = {"state": set(), "batch": set(), "free": set(), "view": set()}
        for item in tape.inputs:
            entering[space_of(item.origin)].add(item.name)
        entering["view"].update(path for path, _ in tape.batch_views)
        bits = 0.0
        for kind, names in entering.items():
            space = self._spaces.setdefault(kind, _Space())
            space.pool = {name for name in names if name not in space.known and not _RELATIVE.fullmatch(name)}
            space.last, space.rule = -1, ""
            bits += self._plain(len(space.pool), natural(len(space.pool)))
        return bits

    def entering(self, kind: str, name: str, model: str | None) -> float:
        """Returns the bits of a name, given the one that an earlier tape's input had in its place."""
        space = self._spaces[kind]
        if name == model:
            bits = self._rule(space, kind, "model")
            if name in space.known:
                space.last = space.known[name]
            return bits
        return self._named(space, kind, name)

    def surviving(self, slot: int, name: str) -> float:
        """Returns the bits of the name under which a storage survives."""
        space = self._spaces["state"]
        if name == f"~0/{slot}":
            return self._rule(space, "survivor", "own")
        if name not in space.known and not _RELATIVE.fullmatch(name):
            bits = self._rule(space, "survivor", "new")  # the tape itself makes what is behind it
            if space.pool:
                bits += self._plain(name if name in space.pool else "", log2(len(space.pool) + 1))
            space.learn(name)
            return bits
        return self._named(space, "survivor", name)

    def _named(self, space: _Space, kind: str, name: str) -> float:
        if parts := _RELATIVE.fullmatch(name):
            return self._rule(space, kind, parts[1]) + self._relative(int(parts[2]), int(parts[3]))
        if name in space.pool:
            bits = self._rule(space, kind, "new") + self._plain(name, log2(len(space.pool)))
        elif space.known[name] == space.last + 1:
            bits = self._rule(space, kind, "next")
        else:
            bits = self._rule(space, kind, "known") + self._plain(name, log2(len(space.known)))
        space.learn(name)
        return bits

    def _plain(self, symbol: str | int, bits: float) -> float:
        return self._code.bits(symbol, (), bits)

    def _rule(self, space: _Space, kind: str, rule: str) -> float:
        bits = self._code.bits(rule, (("name", kind, space.rule), ("name", kind)), _RULES + 1)
        space.rule = rule
        return bits

    def _relative(self, step: int, slot: int) -> float:
        apart, self._slot = slot - self._slot, slot
        return self._code.bits(step, (("step",),), lambda: natural(step)) + self._code.bits(
            apart, (("kept",),), lambda: integer(apart)
        )


def is_relative(name: str) -> bool:
    """Tells whether a name stands for a storage that an earlier step left without a name of its own."""
    return _RELATIVE.fullmatch(name) is not None
