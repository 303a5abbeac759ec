"""Counts what a transcript's records and programs chose, for the ledger of chosen bits; executes nothing.

Every channel that can be read from records and tapes is counted here, over the whole transcript. What only shows when
the programs run (rounding logs, results taken as given) is added by the replay.

Of a run that goes on from others, programs may be counted given theirs (`Known`): then the ledgers of all of them add
up to what the whole lineage chose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weighbridge.core.errors import WeighbridgeError
from weighbridge.numerics.conformance.bound_policy import ORDERS
from weighbridge.numerics.units import orders
from weighbridge.program import generator_starts
from weighbridge.program.adaptive_code import AdaptiveCode
from weighbridge.program.chosen_bits import ChosenBits
from weighbridge.program.feeds import Feeds, Gaps
from weighbridge.program.formula_code import FormulaCode
from weighbridge.program.idle_inputs import idle_names, idle_slots
from weighbridge.program.literal_code import LiteralCode
from weighbridge.program.operation_shapes import Site
from weighbridge.program.origins import TapeValues, formula_texts
from weighbridge.program.own_tensors import returned
from weighbridge.program.schedule_counts import ScheduleCounts
from weighbridge.program.structure_code import StructureCode
from weighbridge.transcript import parentage, returned_state
from weighbridge.transcript.data import OrderSeed, VerifiableOrder
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

SEED_BITS = 64.0
_NAME_BITS = 256.0
_HELD_BITS = 64.0
"""Of a storage that a declared parent explains: which of the parent's contents it is, or what repeats in it."""


@dataclass(slots=True)
class Known:
    """What a reader knows of programs: those described so far, in one transcript or in several.

    Attributes:
        structure: The code of their structure.
        literals: The code of their numbers.
        formulas: The code of their formulas.
    """

    structure: StructureCode = field(default_factory=StructureCode)
    literals: LiteralCode = field(default_factory=LiteralCode)
    formulas: FormulaCode = field(default_factory=FormulaCode)


def count(
    transcript: Transcript,
    tapes: Callable[[bytes], Tape],
    values: Mapping[bytes, TapeValues],
    ledger: ChosenBits,
    known: Known | None = None,
) -> None:
    """Adds to a ledger what a transcript's records and programs chose.

    Args:
        transcript: A verified transcript.
        tapes: Returns the tape of a digest.
        values: What entered its tapes, from `weighbridge.program.origins.analyse`.
        ledger: Is added to.
        known: What other transcripts' programs said before; is added to.

    Raises:
        TapeError: The programs are too large to describe (`tape.too_large`).
        TranscriptError: What the run began from is not there (`transcript.malformed`).
    """
    _programs(transcript, tapes, values, ledger, Known() if known is None else known)
    _records(transcript, tapes, values, ledger)
    _beginning(transcript, tapes, values, ledger)
    _returned(transcript, tapes, ledger)
    _batches(transcript, tapes, ledger)
    _selection(transcript, ledger)
    generator_starts.charge(transcript, tapes, ledger)


def weights(transcript: Transcript, tapes: Callable[[bytes], Tape]) -> float:
    """Returns the bits of the state that a run began with: what its initialisation made, or the first checkpoint."""
    if not transcript.steps:
        return 0.0
    tape = tapes(transcript.step(0).tape)
    if tape.nodes:
        sizes = {item.slot: item.bytes for item in tape.inputs}
        sizes.update(birth for node in tape.nodes for birth in node.births)
        return 8.0 * sum(sizes.get(slot, 0) for slot, _ in tape.survivors)
    if 1 in transcript.checkpoint_steps:
        return 8.0 * sum(data.numel() for data in transcript.checkpoint(1).storages.values())
    return 0.0


def _programs(
    transcript: Transcript,
    tapes: Callable[[bytes], Tape],
    values: Mapping[bytes, TapeValues],
    ledger: ChosenBits,
    known: Known,
) -> None:
    """Formulas, then each tape in the order of first use: its structure, then its numbers."""
    for name, term in formula_texts(transcript).items():
        ledger.add("literals", -1, known.formulas.bits(name, term), f"formula {name}")
    for digest, found in values.items():
        tape = tapes(digest)
        described = known.structure.add(tape)
        where = f"tape {digest.hex()[:16]}"
        if described.op >= 0:
            where = f"{tape.nodes[described.op].op} (operation {described.op}) of {where}"
        ledger.add("structure", found.first, described.bits, where)
        ledger.add("literals", found.first, _numbers(found, described.sites, known.literals, tape.hosts), where)


def _numbers(found: TapeValues, sites: Mapping[int, Site], literals: LiteralCode, hosts: int) -> float:
    """The bits of a tape's constants, and of what explains its other values."""
    bits = 0.0
    for position, value in enumerate(found.values):
        site = sites.get(position, ("", 0))
        if position not in found.changing:
            bits += literals.constant(value, site)
        elif (name := found.changing[position]) is not None:
            bits += literals.explained(name, site, hosts if position in found.indexed else 1)
    return bits


def _records(
    transcript: Transcript, tapes: Callable[[bytes], Tape], values: Mapping[bytes, TapeValues], ledger: ChosenBits
) -> None:
    """Which tape ran when on how much data, where edits and schedules are, and values that are not those of formulas.

    Steps are fed batches of some shapes, and a reader expects the tape that ran last with these. Surprises are counted:
    how many steps apart they are, and which tape it is. Edits are counted by how many steps they are apart.
    """
    edits, surprises, which, feeds = Gaps(), Gaps(), AdaptiveCode(), Feeds(transcript.data is not None)
    schedules = ScheduleCounts()
    expected: dict[Any, bytes] = {}
    known: set[bytes] = set()
    before = b""
    for record in transcript.records():
        found, tape = values[record.tape], record.tape
        if record.kind != "init":
            ledger.add("edits", record.step, edits.next(record.kind == "edit"), "an edit")
            shapes = tuple((path, ref[1:3]) for path, ref in tapes(tape).batch_views)
            ledger.add(feeds.channel, record.step, feeds.next(record, shapes), "how much data a step was fed")
            fed = record.kind, shapes
            bits = surprises.next(expected[fed] != tape) if fed in expected else 0.0
            if expected.get(fed) != tape:
                named = tape if tape in known else b"new"
                bits += which.bits(named, (("after", before), ("any",)), math.log2(1 + len(known)))
            ledger.add("schedule", record.step, bits, f"tape {tape.hex()[:16]}")
            expected[fed] = tape
        known.add(tape)
        before = tape
        ledger.add("schedule", record.step, schedules.next(record.counts), "how far a schedule of formulas is")
        ledger.add("values", record.step, found.value_bits.get(record.step, 0.0), f"values of tape {tape.hex()[:16]}")
    ledger.add("edits", -1, edits.end(), "no further edit")
    ledger.add("schedule", -1, surprises.end(), "no further tape")
    ledger.add("schedule", -1, schedules.end(), "no further change of a schedule's stride")
    ledger.add(feeds.channel, -1, feeds.end(), "no further change of how much data")


def _beginning(
    transcript: Transcript, tapes: Callable[[bytes], Tape], values: Mapping[bytes, TapeValues], ledger: ChosenBits
) -> None:
    """What entered without an origin, and what was there before the first operation."""
    for found in values.values():
        begins = found.kind == "init" and found.undeclared_tensors
        idle = idle_names(transcript, tapes) if begins else frozenset()
        for name, (_, size) in found.undeclared_tensors.items():
            if name not in idle:
                ledger.add("origin" if found.kind == "init" else "tensors", found.first, 8.0 * size, name)
    if not transcript.steps or tapes(transcript.step(0).tape).nodes:
        return
    try:
        parent = parentage.declared(transcript)
    except WeighbridgeError:
        parent = None  # a declaration that says nothing explains nothing
    if parent is not None:
        ledger.add("origin", 0, _NAME_BITS + math.log2(parent.step), f"the parent {parent.transcript[:16]}")
    most = math.inf if parent is None else _HELD_BITS
    for name, data in parentage.existing(transcript).items():
        ledger.add("origin", 0, min(8.0 * data.numel(), most), name)


def _returned(transcript: Transcript, tapes: Callable[[bytes], Tape], ledger: ChosenBits) -> None:
    """State of an earlier step that came back: which step that is, and what goes where it was not."""
    claims = transcript.returned
    by_step: dict[int, dict[str, tuple[int, str]]] = {}
    for (step, name), source in returned(transcript).items():
        by_step.setdefault(step, {})[name] = source
    for step, entered in by_step.items():
        steps = {before for before, _ in entered.values()}
        places = returned_state.places(tapes(transcript.step(step).tape), step)
        ledger.add("edits", step, len(steps) * math.log2(step), "which earlier state came back")
        for name, (before, storage) in entered.items():
            bits = math.log2(len(steps))
            if places.get(name) != {storage}:
                bits += math.log2(1 + len(claims.states[before].storages))
            ledger.add("edits", step, bits, f"where {storage} of step {before} came back"[:200])


def _selection(transcript: Transcript, ledger: ChosenBits) -> None:
    """The choices that stand behind the whole run: its seed, its end, and the order of its data."""
    data, seed = transcript.data, transcript.draft.get("seed")
    if data is None or not isinstance(data.order, VerifiableOrder) or seed != data.seed():
        ledger.add("selection", -1, SEED_BITS, "the seed")
    if data is not None and isinstance(data.order, OrderSeed):
        ledger.add("selection", -1, SEED_BITS, "the seed of the data's order")
    elif data is not None and isinstance(data.order, tuple):
        ledger.add("selection", -1, len(data.order) * math.log2(max(1, len(data))), "the order of the data")
    ledger.add("selection", -1, math.log2(max(1, transcript.steps)), "the number of steps")
    if declared := transcript.draft.get(ORDERS):
        ledger.add("selection", -1, len(orders.parse(declared)) * orders.BITS, "the orders of products")


def _batches(transcript: Transcript, tapes: Callable[[bytes], Tape], ledger: ChosenBits) -> None:
    """What programs were fed that no commitment to data covers; what the initialisation used of it in any case."""
    sizes: dict[bytes, tuple[int, str]] = {}
    for record in transcript.records():
        if record.kind != "init" and transcript.data is not None:
            return
        if record.tape not in sizes:
            fed = [item for item in tapes(record.tape).inputs if item.origin == "batch"]
            idle = idle_slots(transcript, tapes) if fed and record.step == 0 else frozenset()
            items = [(item.bytes, item.name) for item in fed if item.slot not in idle]
            name = max(items, default=(0, ""))[1].partition("\n")[0]
            sizes[record.tape] = sum(size for size, _ in items), name
        total, name = sizes[record.tape]
        ledger.add("batch", record.step, 8.0 * total, name)
