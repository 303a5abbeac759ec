"""What a referee says of one claimed leaf: it makes the leaf that follows from the agreed one, and compares.

Only the disputed operation is executed, on operands that are shown to be those of the agreed memory. The same function
is used by `workers.dispute_worker`, which is confined; nothing else should call it on what others sent.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import (
    DeviceArithmeticError,
    FormatError,
    LogError,
    ProofError,
    TapeError,
    WeighbridgeError,
)
from weighbridge.core.memory_map import Held, MemoryMap, changed_root
from weighbridge.execution.dispute.asking import Claim, Judgement, Verdict
from weighbridge.execution.dispute.leaves import Leaf, encoded, input_digest, leaf_hash, places, values_of
from weighbridge.execution.dispute.openings import Contents, Opening, opened_slots
from weighbridge.execution.dispute.part_judgement import ShownError, entries_of, judge_part
from weighbridge.execution.dispute.signed_trees import contradiction
from weighbridge.execution.dispute.tracing import Tracer, ends_as, enter, finish, most_entries
from weighbridge.execution.memory_roots import held, may_write, slots_of
from weighbridge.program.flops import flops
from weighbridge.program.operands import Operands
from weighbridge.transcript.data import batch_digest
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape, absolute_name


def judge(claim: Claim, opening: bytes, tracer: Tracer) -> Judgement:
    """Judges a claim.

    Args:
        claim: The claim.
        opening: What the party shows, encoded.
        tracer: Executes the operation; it has the seed and the policy of the draft.
    """
    if claim.step is not None and not _begins(claim):
        why = "the step record or its program is not what the courses have the step begin with"
        return Judgement("false", "dispute.course", why)
    if not claim.answered:
        return Judgement("admissible", "dispute.follows", "the challenge begins as both courses have it")
    try:
        tape = Tape.decode(claim.tape)
        record = StepRecord.from_cbor(claim.record)
        if record.tape != bytes_digest(claim.tape):
            return Judgement("false", "dispute.record", "the step record names another tape than was agreed on")
        if claim.left and record.state != claim.left:
            return Judgement(
                "false", "dispute.record", "the step record does not end in the state of the party's course"
            )
        if claim.own and (why := contradiction(claim, record)):
            return Judgement("false", "dispute.supplement", why)
        on_demand = bool(record.outputs)
        if not on_demand and record.rounding != claim.log:
            return Judgement("false", "dispute.rounding", "the rounding log is not the one that the step record names")
        if not claim.leaf and claim.count == claim.index == places(tape):
            return Judgement("admissible", "dispute.equal", f"the parties name the same {places(tape)} leaves")
        if not claim.leaf or claim.count > places(tape) or (claim.own and claim.count != places(tape)):
            return Judgement(
                "false", "dispute.leaf.missing", f"the step has {places(tape)} leaves, and {claim.count} were named"
            )
        shown = _shown(claim, opening)
    except (FormatError, ShownError, ProofError) as error:
        return Judgement("forfeit", "dispute.opening", f"the opening shows nothing: {error.message}")
    except WeighbridgeError as error:
        return Judgement("false", error.reason, error.message)
    try:
        if claim.part is not None:
            return judge_part(claim, claim.part, tape, record, shown, tracer)
        found, recorded, explainable = _follow(claim, tape, record, shown, tracer)
    except (ShownError, ProofError) as error:
        return Judgement("forfeit", "dispute.opening", f"the opening shows nothing: {error.message}")
    except DeviceArithmeticError as error:
        return Judgement("undecided", error.reason, error.message)
    except (TapeError, LogError) as error:
        verdict: Verdict = "undecided" if error.reason in ("tape.too_large", "replay.collectives.missing") else "false"
        return Judgement(verdict, error.reason, error.message)
    name = "" if claim.index in (0, places(tape) - 1) else f" ({tape.nodes[claim.index - 1].op})"
    what = f"leaf {claim.index}{name}"
    if found.digest() != claim.leaf and explainable and _explained(claim, tape, record, shown, tracer):
        why = "few elements next to a rounding boundary would explain that; ask on the device that recorded it"
        return Judgement("undecided", "dispute.bound", f"{what} comes out otherwise here, but {why}")
    if found.digest() != claim.leaf:
        return Judgement("false", "dispute.leaf", f"{what} is not what follows from the leaf before it")
    if claim.own and not recorded:
        return Judgement("false", "dispute.record", f"{what} follows, but the step record says something else of it")
    return Judgement("admissible", "dispute.follows", f"{what} follows from the leaf before it")


def _begins(claim: Claim) -> bool:
    """Says whether a record and its program are of the step at which courses part, and begin as they have it."""
    try:
        record = StepRecord.from_cbor(claim.record)
    except WeighbridgeError:
        return False
    begins = record.step, bytes_digest(claim.tape), input_digest(record)
    return begins == (claim.step, record.tape, claim.input)


def _explained(claim: Claim, tape: Tape, record: StepRecord, shown: Opening, tracer: Tracer) -> bool:
    """Says whether the claimed leaf comes out if results are taken as the record's checksums have them."""
    tracer.explaining = True
    try:
        return _follow(claim, tape, record, shown, tracer)[0].digest() == claim.leaf
    except WeighbridgeError:
        return False
    finally:
        tracer.explaining = False


def _shown(claim: Claim, data: bytes) -> Opening:
    opening = Opening.from_cbor(data)
    if bytes_digest(opening.log) != claim.log:
        raise ShownError("the log is not the one whose digest the party named")
    if claim.index and leaf_hash(opening.previous) != claim.previous:
        raise ShownError("the leaf before is not the one that both parties named")
    if claim.index and leaf_hash(opening.first) != claim.first:
        raise ShownError("the first leaf is not the one that both parties named")
    return opening


def _follow(claim: Claim, tape: Tape, record: StepRecord, shown: Opening, tracer: Tracer) -> tuple[Leaf, bool, bool]:
    """Returns the leaf that follows, whether the record agrees with it, and whether a wider bound could change it."""
    if claim.index == 0:
        return _enter(claim, tape, record, shown, tracer), True, False
    previous, first = Leaf.from_cbor(shown.previous), Leaf.from_cbor(shown.first)
    if enter(record, claim.state, first.left).digest() != claim.first:
        raise TapeError("the step record has other values, another batch or other draws than the first leaf")
    if claim.index == places(tape) - 1:
        return *_finish(claim, tape, record, shown, previous), False
    return _operation(claim.index - 1, tape, record, shown, previous, tracer)


def _enter(claim: Claim, tape: Tape, record: StepRecord, shown: Opening, tracer: Tracer) -> Leaf:
    if shown.state.digest() != claim.state:
        raise ShownError("the state is not the one that both parties agreed on")
    if batch_digest(shown.batch, shown.undeclared) != record.batch:
        raise ShownError("the batch is not the one that the step record names")
    slots: dict[int, Tensor] = {}
    others = replace(tape, inputs=[item for item in tape.inputs if item.origin not in ("state", "dropped")])
    tracer._enter(others, record, shown.batch, shown.undeclared, slots, {})
    memory = MemoryMap(slots_of(tape))
    for slot, data in slots.items():
        memory.put(slot, held(data))
    entered = set()
    for item in tape.inputs:
        if item.origin in ("state", "dropped"):
            name = absolute_name(item.name, record.step)
            region = shown.state.regions.get(name)
            if region is None or region.size != item.bytes or name in entered:
                raise TapeError(f"the step reads or drops the state {name[:80]!r}, which is not there as the tape says")
            entered.add(name)
            if item.origin == "state":
                memory.put(item.slot, region)
    return enter(record, claim.state, memory.root())


def _finish(claim: Claim, tape: Tape, record: StepRecord, shown: Opening, previous: Leaf) -> tuple[Leaf, bool]:
    if shown.state.digest() != claim.state:
        raise ShownError("the state is not the one that both parties agreed on")
    memory = MemoryMap(slots_of(tape))
    for slot, region in shown.memory.items():
        if slot >= slots_of(tape):
            raise ShownError(f"the tape has no slot {slot}")
        memory.put(slot, region)
    if memory.root() != previous.left:
        raise ShownError("the memory is not that of the leaf before")
    freed = {slot for at, slot in tape.frees if at == len(tape.nodes)}
    there = {slot: region for slot, region in shown.memory.items() if slot not in freed}
    regions, names = dict(shown.state.regions), dict[int, str]()
    for item in tape.inputs:
        if item.origin in ("state", "dropped"):
            name = absolute_name(item.name, record.step)
            if item.origin == "state" and item.slot in there:
                names[item.slot] = name
                regions[name] = there[item.slot]
            else:
                regions.pop(name, None)
    for slot, kept in tape.survivors:
        name = absolute_name(kept, record.step)
        if slot not in there or slot in names or name in regions:
            raise TapeError(f"slot {slot} survives but does not exist, or is state already")
        regions[name], names[slot] = there[slot], name
    done = previous.after
    drawn = {str(number): at for number, at in done.rng.items()}
    state = Contents(regions, shown.state.rng | drawn).digest()
    return finish(claim.index, done, previous.left, state), ends_as(record, done, state)


def _operation(
    op: int, tape: Tape, record: StepRecord, shown: Opening, previous: Leaf, tracer: Tracer
) -> tuple[Leaf, bool, bool]:
    node, before = tape.nodes[op], previous.after
    opened, slots = {}, dict[int, Tensor]()
    for (slot, content, region, proof), (wanted, reads) in zip(shown.slots, opened_slots(tape, op), strict=False):
        if slot != wanted or (content is None) != (region is None or not reads):
            raise ShownError(f"the opening does not show slot {wanted} as the operation needs it")
        if content is not None and region is not None:
            if (len(content), bytes_digest(content)) != (region.size, region.content):
                raise ShownError(f"the bytes of slot {slot} are not those of its digest")
            slots[slot] = (
                torch.frombuffer(bytearray(content), dtype=torch.uint8).to(tracer.device)
                if content
                else (torch.empty(0, dtype=torch.uint8, device=tracer.device))
            )
        opened[slot] = (region, proof)
    if len(shown.slots) != len(opened_slots(tape, op)):
        raise ShownError("the opening shows more or fewer slots than the operation touches")
    changes: dict[int, Held | None] = {slot: None for at, slot in tape.frees if at == op}
    changed_root(slots_of(tape), opened, {}, previous.left)  # the operands are the agreed ones, or nothing is executed
    if len(record.values) != tape.values:
        raise TapeError(f"the record has {len(record.values)} values, its tape {tape.values}")
    log, taken = entries_of(shown.log, most_entries(record), op)
    if taken != before.entries:
        raise LogError(f"the log has {taken} entries before operation {op}, and {before.entries} were followed")
    context = tracer._context(record, log)
    context.checked, context.hosts, context.rng = before.checked, before.hosts, dict(before.rng)
    context.rounded_elements = before.rounded
    tracing = tracer._tracing
    tracing.entries, tracing.chosen = before.entries, before.chosen
    operands = Operands(tracer.device, tape, slots, list(record.values))
    tracer._perform(op, tape, record.tape, context, slots, {}, operands, ())
    if tracing.misled is not None:
        raise tracing.misled
    if log.left:
        raise LogError(f"the log has entries for outputs that operation {op} ({node.op}) does not round")
    writable = may_write(tape, op)
    for slot, data in slots.items():
        region = held(data)
        if slot in writable:
            changes[slot] = region
        elif region != opened[slot][0]:
            raise DeviceArithmeticError(f"operation {op} ({node.op}) wrote to slot {slot}, which it only reads")
    leaf = Leaf(
        index=op + 1, node=encoded(node), values=values_of(node, record.values), host=tracing.read,
        results=tracing.noted, before=before, after=tracing.counters(before.flops + flops(tape)[op]),
        memory=previous.left, left=changed_root(slots_of(tape), opened, changes, previous.left),
    )  # fmt: skip
    return leaf, tracing.recorded(), tracing.explainable
