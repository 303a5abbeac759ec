"""One tape, walked through with inputs of known content: what its state holds afterwards, and what was done to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weighbridge.program.content import (
    BATCH,
    BROUGHT,
    CHANCE,
    FEW_NUMBERS,
    FOREIGN,
    GRADIENT,
    NOTHING,
    PERHAPS,
    SENT,
    WEIGHT,
    Content,
    Replacement,
    Roles,
)  # fmt: skip
from weighbridge.program.effects import MANY, Effect
from weighbridge.program.origins import SCALAR_BYTES
from weighbridge.program.written_bytes import Coverage, whole
from weighbridge.transcript.tape import Ref, Tape


def is_kept(name: str) -> bool:
    """Whether it is a name of what an earlier step left behind, and of nothing attached."""
    return name.startswith(("~", "kept/"))


class Outcome(NamedTuple):
    """What one walk found: state afterwards, what was replaced, writes to weights, parts of weights replaced."""

    after: tuple[tuple[str, Content], ...]
    replaced: tuple[Replacement, ...]
    writes: tuple[tuple[str, int], ...]
    parts: tuple[tuple[str, int, Ref, Content], ...]


class Program:
    """A tape, read once for all walks."""

    def __init__(self, tape: Tape, effects_: list[Effect]) -> None:
        self.tape, self.effects = tape, effects_
        self.inputs = [(item, item.origin in ("state", "dropped") and is_kept(item.name)) for item in tape.inputs]
        self.attached = [item for item, kept in self.inputs if item.origin in ("state", "dropped") and not kept]
        freed = {slot for _, slot in tape.frees}
        self.ends = [i.name for i in tape.inputs if i.origin == "dropped" or (i.origin == "state" and i.slot in freed)]
        self.known: dict[tuple[object, ...], Outcome] = {}


class Walk:
    """One tape on inputs of known content."""

    def __init__(
        self, program: Program, entering: tuple[Content, ...], again: tuple[bool, ...], roles: Roles, judged: bool
    ) -> None:
        self._program, self._again, self._roles, self._judged = program, again, roles, judged
        self._holds: dict[int, Content] = {}
        self._sizes: dict[int, int] = {}
        self._state: dict[int, str] = {}
        self._will_be = {
            slot: name
            for (slot, name), known in zip(program.tape.survivors, again, strict=True)
            if judged and known and name in roles.weights and name in roles.trained
        }
        self._written: dict[str, int] = {}
        self._pieces: dict[int, tuple[Coverage, Content]] = {}
        self._replaced: dict[str, Replacement] = {}
        self._writes: dict[tuple[str, int], None] = {}
        self._parts: list[tuple[str, int, Ref, Content]] = []
        for (item, _), content in zip(program.inputs, entering, strict=True):
            if item.origin == "dropped":
                continue
            self._holds[item.slot], self._sizes[item.slot] = content, item.bytes
            if item.origin == "state":
                self._state[item.slot] = item.name

    def run(self) -> Outcome:
        """Walks from the first operation to the end of the step."""
        for effect in self._program.effects:
            for slot in effect.dies:
                for known in (self._holds, self._sizes, self._pieces):
                    known.pop(slot, None)
                self._written.pop(self._state.pop(slot, ""), None)
            for slot, size in effect.grows:
                self._pieces.pop(slot, None)
                self._sizes[slot] = size
            made = self._made(effect)
            for slot, size in effect.births:
                self._holds[slot], self._sizes[slot] = made, size
            for ref in effect.targets:
                if ref[0] in self._holds:
                    self._write(effect, ref, made)
            if self._will_be:
                self._judge_what_will_be_weights(effect)
        return self._finish()

    def _made(self, effect: Effect) -> Content:
        """What an operation makes from what it reads and does not change."""
        kinds = foreign = (CHANCE if effect.drawn else 0) | (SENT if effect.sent else 0)
        follows, numbers = False, effect.numbers
        for slot in effect.given:
            kinds |= self._holds.get(slot, NOTHING).kinds
        content = [self._holds.get(slot, NOTHING) for slot in effect.content]
        for each in content:
            follows = follows or each.follows
            foreign |= each.foreign
            numbers += each.numbers
        if effect.computes and any(each.follows and not each.foreign for each in content):
            foreign = numbers = 0
        return Content(_borne(kinds) if effect.computes else kinds, follows, foreign, min(numbers, FEW_NUMBERS + 1))

    def _write(self, effect: Effect, ref: Ref, made: Content) -> None:
        """Puts what was made where it goes, and judges what that does to state."""
        slot = ref[0]
        name, before, size = self._state.get(slot), self._holds[slot], self._sizes[slot]
        weight = self._judged and name in self._roles.weights
        trained = self._judged and name in self._roles.trained and size > SCALAR_BYTES
        if name is not None:
            self._written[name] = slot
        if weight and name is not None:
            moved = made.kinds if effect.computes else _moved(effect, self._holds)
            self._writes[name, moved] = None
        covers = whole(ref, size)
        if effect.replaces == "yes" and covers:
            self._pieces.pop(slot, None)
            self._holds[slot] = self._judge(effect.op, name, made) if trained and name is not None else made
            return
        if effect.replaces == "perhaps" and weight and trained and name is not None:
            if made.foreign and not effect.computes:
                made = made._replace(foreign=made.foreign | PERHAPS)
            if covers and not made.follows and (effect.computes or made.foreign):
                self._holds[slot] = self._judge(effect.op, name, made)
                return
        replaces = effect.replaces == "yes" or (effect.replaces == "perhaps" and weight)
        if replaces and trained and name is not None and not made.follows:
            self._piece(effect, ref, name, made, weight)
        self._holds[slot] = _joined(effect, before, made)
        if weight and trained and name is not None:
            self._holds[slot] = self._judge(effect.op, name, self._holds[slot])

    def _judge(self, op: int, name: str, content: Content) -> Content:
        """Notes that state was replaced, if what it holds now follows from no trained state."""
        if content.follows:
            return content
        replacement = Replacement(name, op, content.foreign, content.numbers)
        if replacement.why():
            self._replaced.setdefault(name, replacement)
        return content

    def _judge_what_will_be_weights(self, effect: Effect) -> None:
        """Judges storages before they have the name: the step may train them first."""
        for slot in (*(slot for slot, _ in effect.births), *(ref[0] for ref in effect.targets)):
            name = self._will_be.get(slot)
            if name is not None and self._holds[slot].foreign & FOREIGN and self._sizes[slot] > SCALAR_BYTES:
                self._judge(effect.op, name, self._holds[slot])

    def _piece(self, effect: Effect, ref: Ref, name: str, made: Content, weight: bool) -> None:
        """Part of a state was replaced: once every byte of it was, so was the state, over as many steps as it took."""
        slot = ref[0]
        if weight and made.foreign & FOREIGN:
            self._parts.append((name, effect.op, ref, made))
        covered, before = self._pieces.get(slot) or (Coverage(self._sizes[slot]), NOTHING)
        together = Content(0, False, before.foreign | made.foreign, min(before.numbers + made.numbers, FEW_NUMBERS + 1))
        self._pieces[slot] = covered, together
        if covered.add(ref):
            self._pieces.pop(slot)
            self._judge(effect.op, name, together)

    def _finish(self) -> Outcome:
        after = {name: _kept(self._holds[slot]) for name, slot in self._written.items()}
        end = len(self._program.tape.nodes)
        for (slot, name), again in zip(self._program.tape.survivors, self._again, strict=True):
            content = self._holds.get(slot, NOTHING)
            if self._judged and again and name in self._roles.weights:
                self._writes[name, content.kinds] = None
            trained = self._judged and name in self._roles.trained and self._sizes.get(slot, 0) > SCALAR_BYTES
            if trained and (again or (name in self._roles.weights and content.foreign & FOREIGN)):
                self._judge(end, name, content)
            after[name] = _kept(content)
        return Outcome(tuple(after.items()), tuple(self._replaced.values()), tuple(self._writes), tuple(self._parts))


def _borne(kinds: int) -> int:
    """Adds that batch and weights both had bearing, if they had; of what was sent, only its sender knows."""
    return kinds | GRADIENT if kinds & SENT or (kinds & BATCH and kinds & WEIGHT) else kinds


def _kept(content: Content) -> Content:
    """What a state holds for later steps: of what bears gradients, that is all that counts."""
    return content._replace(kinds=GRADIENT) if content.kinds & GRADIENT else content


def _moved(effect: Effect, holds: Mapping[int, Content]) -> int:
    """What a write that only moves content brings with it; where to is no content."""
    kinds = (CHANCE if effect.drawn else 0) | (SENT if effect.sent else 0)
    brought = 0
    for slot in effect.content:
        held = holds.get(slot, NOTHING)
        kinds |= held.kinds
        brought |= held.foreign & BROUGHT if held.follows else 0
    met = kinds & BATCH and kinds & WEIGHT
    return brought or (kinds | GRADIENT if met else kinds)


def _joined(effect: Effect, before: Content, made: Content) -> Content:
    """What a storage holds after a write that leaves something of what was there."""
    kinds, numbers = before.kinds | made.kinds, min(before.numbers + made.numbers, MANY)
    if effect.computes:
        either = (before.follows and not before.foreign) or (made.follows and not made.foreign)
        foreign = 0 if either else before.foreign | made.foreign
        kinds = _borne(kinds)
    else:
        foreign = before.foreign | made.foreign
    return Content(kinds, before.follows or made.follows, foreign, min(numbers, FEW_NUMBERS + 1))
