"""Disputes about one chunk of a result, played in the test's own process."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from support.disputed import STEP, Party, judge_here

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.memory_map import Held, changed_root
from weighbridge.core.treehash.parts import chunks_of, digest_of
from weighbridge.execution.dispute import moves
from weighbridge.execution.dispute.asking import Judgement, Traced
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.leaves import Leaf
from weighbridge.execution.dispute.messages import Parts, Ruling, Shown, signed
from weighbridge.execution.dispute.openings import Opening
from weighbridge.execution.dispute.refereeing import Referee
from weighbridge.execution.memory_roots import slots_of
from weighbridge.transcript.tape import Tape

KEYS = (SigningKey.generate(), SigningKey.generate())
REFEREE = SigningKey.generate()


def places(names: list[str], *wanted: str) -> list[int]:
    return [next(at for at, name in enumerate(names) if name == each) for each in wanted]


def play(mine: Party, theirs: Party, *, denied: int | None = None, forged: Parts | None = None) -> Referee:
    """Plays a dispute as the command does: parts where the operation has any, then openings of the chunk.

    With `denied`, the challenger disputes the defender's record, and names no leaf from there on.
    """
    parties, told = (mine, theirs), [mine.tree()[0], theirs.tree()[0]]
    if denied is not None:
        told[0] = replace(told[0], leaves=told[0].leaves[:denied])
    referee = Referee((KEYS[0].public, KEYS[1].public), REFEREE, judge=judge_here)
    asked = moves.challenge(told[0], STEP, own=denied is None)
    referee.post(signed(referee.dispute.head, asked, KEYS[0]).data)
    referee.post(signed(referee.dispute.head, moves.answer(told[1], asked), KEYS[1]).data)
    while referee.ruling is None:
        party, due = referee.dispute.due()
        made = parties[party].tree(referee.dispute.leaf, referee.dispute.part)[0]
        content: Parts | Shown = Shown(opening=made.opening or b"")
        if due == "parts" or (made.parts and not referee.dispute.narrowing_over):
            leaf = made.leaf if denied is None or party == DEFENDER else b""
            content = forged if forged is not None and party == DEFENDER else Parts(leaf=leaf, parts=made.parts)
        referee.post(signed(referee.dispute.head, content, KEYS[party]).data)
    return referee


def verdicts(referee: Referee) -> dict[int, str]:
    assert referee.ruling is not None
    assert isinstance(referee.ruling.content, Ruling)
    return {party: verdict for party, verdict, _, _ in referee.ruling.content.claims}


def judged(run: Path, place: int, part: int, told: Traced, opening: bytes, **changes: bytes) -> Judgement:
    """Judges an honest party's claim about a chunk, with other bytes in places."""
    referee = Referee((KEYS[0].public, KEYS[1].public), REFEREE, judge=judge_here)
    other = replace(told, leaves=(*told.leaves[:place], *[bytes(32)] * (len(told.leaves) - place)))
    asked = moves.challenge(told, STEP, own=True)
    referee.post(signed(referee.dispute.head, asked, KEYS[0]).data)
    referee.post(signed(referee.dispute.head, moves.answer(other, asked), KEYS[1]).data)
    made = opened(run, place, None)
    claim = referee.dispute.claim(CHALLENGER)
    assert claim is not None
    return judge_here(replace(claim, part=part, **{"parts": made.parts, "shown": made.leaf} | changes), opening)


@cache
def opened(run: Path, place: int, part: int | None) -> Traced:
    return Party(run).tree(place, part)[0]


def forged(told: Traced, place: int, part: int, made: Traced, data: bytes) -> dict[str, bytes]:
    """Returns a claim whose leaf, memory and parts all fit one result with a false chunk.

    Args:
        told: The honest tree.
        place: The leaf.
        part: The chunk.
        made: The honest leaf and parts.
        data: An honest opening of that leaf.
    """
    tape, leaf, shown = Tape.decode(told.tape), Leaf.from_cbor(made.leaf), Opening.from_cbor(data)
    parts = made.parts[: 32 * part] + bytes(32) + made.parts[32 * part + 32 :]
    there = {slot: held.size for slot, _, held, _ in shown.slots if held} | dict(tape.nodes[place - 1].births)
    stored, at = dict[int, Held](), 0
    for output in tape.nodes[place - 1].outputs:
        if output is not None:
            slot = tape.refs[output][0]
            end = at + 32 * chunks_of(there[slot])
            stored[slot], at = Held(there[slot], digest_of(parts[at:end], there[slot])), end
    freed = {slot: None for at, slot in tape.frees if at == place - 1}
    proofs = {slot: (held, proof) for slot, _, held, proof in shown.slots}
    left = changed_root(slots_of(tape), proofs, {**freed, **stored}, leaf.memory)
    contents = [held.content for held in stored.values()]
    contents = contents * len(leaf.results) if len(contents) == 1 else contents[: len(leaf.results)]
    results = [(content, checksum) for content, (_, checksum) in zip(contents, leaf.results, strict=True)]
    other = replace(leaf, results=results, left=left)
    return {"parts": parts, "shown": other.to_cbor(), "leaf": other.digest()}
