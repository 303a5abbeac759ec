"""What a referee says of one chunk of a claimed result: the parties' leaves, and the chunk that follows.

All of a leaf but the results follows from the agreed leaf before it, the log and the tape. The result is bound by the
chaining values that the party names; one chunk of it is recomputed.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from weighbridge.core.errors import FormatError, LogError, TapeError, WeighbridgeError
from weighbridge.core.memory_map import Held, changed_root
from weighbridge.core.treehash import parts
from weighbridge.execution.dispute.asking import Claim, Judgement, split
from weighbridge.execution.dispute.leaves import Leaf, encoded, leaf_hash, places, values_of
from weighbridge.execution.dispute.narrowing import Narrowed, any_has, chaining_value, narrowed, written
from weighbridge.execution.dispute.openings import Opening, opened_slots
from weighbridge.execution.dispute.part_execution import Part, execute
from weighbridge.execution.dispute.reading import tensor_of
from weighbridge.execution.dispute.tracing import WHOLE_VALUE, Tracer, enter, most_entries
from weighbridge.execution.memory_roots import slots_of
from weighbridge.numerics.rounding import rounding_log
from weighbridge.numerics.rounding.rounding_log import LogReader, OpEntries
from weighbridge.numerics.slices.norms import worst_row
from weighbridge.numerics.slices.parts import all_of, enclosing
from weighbridge.program.flops import flops
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape

PART = "dispute.follows.part"
"""Reason of an admissible claim of which a chunk was executed, and nothing else of the operation."""


class ShownError(WeighbridgeError):
    """An opening shows something else than what was agreed."""

    code = "dispute.opening"


def judge_part(claim: Claim, part: int, tape: Tape, record: StepRecord, shown: Opening, tracer: Tracer) -> Judgement:
    """Judges a claim by one chunk of the result of its operation.

    Args:
        claim: The claim.
        part: Number of the chunk.
        tape: The program.
        record: The step record that it is about.
        shown: What the party shows; the log and the leaves in it are those that were named.
        tracer: Has the policy of the draft and the device.

    Raises:
        ProofError, ShownError: The party shows something else than it has to.
        TapeError, LogError: The operation cannot be executed, or the log is false.
    """
    if not 0 < claim.index < places(tape) - 1 or leaf_hash(claim.shown) != claim.leaf:
        raise ShownError("the leaf is not the one that the party named, or has no parts")
    try:
        previous, first, leaf = (Leaf.from_cbor(each) for each in (shown.previous, shown.first, claim.shown))
    except FormatError as error:
        raise ShownError(error.message) from None
    if enter(record, claim.state, first.left).digest() != claim.first:
        raise TapeError("the step record has other values, another batch or other draws than the first leaf")
    if len(record.values) != tape.values:
        raise TapeError(f"the record has {len(record.values)} values, its tape {tape.values}")
    op = claim.index - 1
    sizes = {slot: held.size for slot, _, held, _ in shown.slots if held is not None}
    which = narrowed(tape, op, list(record.values), tracer._policy, sizes)
    if which is None or part >= which.chunks:
        raise ShownError("this operation is executed whole; show all that it reads")
    result = which.result(part)
    if (shown.worst is None) != (which.slice(part).worst is None):
        raise ShownError("the opening names a worst row where the bound reads none, or none where it reads one")
    results = written(which, claim.parts)
    chunks, left = _operands(tape, op, which, part, shown, previous.left, results)
    entries = _logged(shown, record, op, previous, which)
    worst = shown.worst if shown.worst is None else _worse(which, part, shown, claim.rival, chunks)
    found = execute(which, part, chunks, entries, tracer._policy, tracer.device, worst)
    if any(each is not None for each in entries.values()) and not found.roundings:
        raise LogError(f"the log has entries for outputs that operation {op} ({which.call.op}) does not round")
    expected = _expected(claim, tape, record, previous, leaf, which, results, found, entries, left)
    what = _place(which, part, claim.index, tape.nodes[op].op)
    if expected.to_cbor() != claim.shown:
        return Judgement("false", "dispute.leaf", f"leaf {claim.index} is not what follows, whatever its results are")
    named = split(claim.parts)[part]
    if named != chaining_value(result, part, found.data):
        if any_has(named, result, part, found.others):
            why = "few elements next to a rounding boundary would explain that; ask on the device that recorded it"
            return Judgement("undecided", "dispute.bound", f"{what} comes out otherwise here, but {why}")
        return Judgement("false", "dispute.leaf", f"{what} is not what follows from the leaf before it")
    sums = b"".join(checksum.to_bytes(8, "little") for _, checksum in leaf.results)
    at = 8 * previous.after.checked
    if claim.own and record.checksums[at : at + len(sums)] != sums:
        return Judgement("false", "dispute.record", f"{what} follows, but the step record says something else of it")
    return Judgement("admissible", PART, f"{what} follows from the leaf before it; no other part of it was executed")


def _place(which: Narrowed, part: int, index: int, op: str) -> str:
    """Returns in words what is compared: which chunk of which result, and the box in which it lies."""
    result = which.result(part)
    start, stop = result.elements(part)
    of = "the result" if len(which.results) == 1 else f"result {result.output}"
    box = ", ".join(f"{low}:{high}" for low, high in enclosing(result.ref[2], start, stop))
    return (
        f"chunk {part - result.first} of {result.chunks} of {of} of leaf {index} ({op}), elements {start} to "
        f"{stop - 1} of {result.numel}, in [{box}],"
    )


def _operands(
    tape: Tape, op: int, which: Narrowed, part: int, shown: Opening, root: bytes, results: dict[int, Held]
) -> tuple[dict[int, dict[int, bytes]], bytes]:
    """Returns the chunks of storages that were shown, and the memory root with the results."""
    wanted = opened_slots(tape, op)
    if [slot for slot, *_ in shown.slots] != [slot for slot, _ in wanted]:
        raise ShownError("the opening shows other slots than the operation touches")
    opened = {slot: (held, proof) for slot, _, held, proof in shown.slots}
    changes: dict[int, Held | None] = {slot: None for at, slot in tape.frees if at == op}
    left = changed_root(slots_of(tape), opened, changes | results, root)
    chunks = {}
    try:
        needed = which.needed(part, _naming(which, part, shown), shown.worst)
    except TapeError:
        if shown.worst is None:
            raise
        raise ShownError("the opening names a row that is not there") from None
    for (slot, content, held, _), (_, reads) in zip(shown.slots, wanted, strict=True):
        if (content is None) != (held is None or not reads):
            raise ShownError(f"the opening does not show slot {slot} as the operation needs it")
        if content is not None and held is not None:
            chunks[slot] = parts.joined(content, needed.get(slot, ()), held.size, held.content)
    if not needed.keys() <= chunks.keys():
        raise ShownError("a slot that the operation reads does not exist")
    return chunks, left


def _worse(which: Narrowed, part: int, shown: Opening, rival: bytes, chunks: dict[int, dict[int, bytes]]) -> int | None:
    """Returns which of the rows that both parties name as the worst is the worse one, and adds its chunks.

    Another row than the worst makes the bound smaller. That admits no other results, but a log whose entries are too
    short for the true bound; so a party that names the true row has the other one's log judged by it too.

    Args:
        which: The operation.
        part: The chunk of its results.
        shown: What the party shows.
        rival: What the other party shows, encoded; if that is not of the same memory, it names nothing.
        chunks: Of storages, by slot and number, as the party showed them.
    """
    assert shown.worst is not None
    found = which.slice(part)
    assert found.worst is not None
    ref = which.refs[found.worst]
    try:
        other = Opening.from_cbor(rival)
        if other.worst is None or other.worst == shown.worst:
            return shown.worst
        here = next(held for slot, _, held, _ in shown.slots if slot == ref[0])
        content = next(data for slot, data, held, _ in other.slots if slot == ref[0] and held == here)
        if here is None or content is None:
            return shown.worst
        theirs = parts.joined(
            content, which.needed(part, None, other.worst).get(ref[0], ()), here.size, here.content
        )  # fmt: skip
        both = chunks[ref[0]] | theirs
        rows = [tensor_of(ref, all_of(ref[2]), both, which.worst(found, each)) for each in (shown.worst, other.worst)]
    except (WeighbridgeError, StopIteration):
        return shown.worst
    if not worst_row(which.call.bound | {found.worst: torch.cat(rows)}):
        return shown.worst
    chunks[ref[0]] = both
    return other.worst


def _naming(which: Narrowed, part: int, shown: Opening) -> dict[int, bytes] | None:
    """Returns the chunks that name the rows that are read, if an operand names any."""
    named = which.named(part)
    if named is None:
        return None
    slot, numbers = named
    for each, content, held, _ in shown.slots:
        if each == slot and content is not None and held is not None:
            return parts.joined(content, numbers, held.size, held.content)
    raise ShownError("a slot that the operation reads does not exist")


def _logged(
    shown: Opening, record: StepRecord, op: int, previous: Leaf, which: Narrowed
) -> dict[int, OpEntries | None]:  # fmt: skip
    """Returns what the log says of each result."""
    log, taken = entries_of(shown.log, most_entries(record), op)
    if taken != previous.after.entries:
        raise LogError(f"the log has {taken} entries before operation {op}, and others were followed")
    entries = {each.output: log.take(op, at, each.numel) for at, each in enumerate(which.results)}
    if log.left:
        raise LogError(f"the log has entries for outputs that operation {op} ({which.call.op}) does not round")
    return entries


def _expected(
    claim: Claim, tape: Tape, record: StepRecord, previous: Leaf, leaf: Leaf, which: Narrowed, made: dict[int, Held],
    found: Part, entries: dict[int, OpEntries | None], left: bytes,
) -> Leaf:  # fmt: skip
    """Returns the leaf that follows if the results are those that the party names, with the checksums that it names."""
    op, before = claim.index - 1, previous.after
    noted = which.noted(found.results)
    sums = [*(checksum for _, checksum in leaf.results[: len(noted)]), *[0] * len(noted)][: len(noted)]
    logged, chosen, rounded = 0, 0, 0
    for each in which.results:
        of = entries[each.output]
        if of is not None:
            logged += len(of.widths)
            chosen += sum(width or WHOLE_VALUE[each.dtype] for width in of.widths.tolist())
    if found.roundings:
        alone = len(which.results) == 1
        rounded = found.roundings * which.results[0].numel if alone else sum(each.numel for each in which.results)
    after = replace(
        before, entries=before.entries + logged, checked=before.checked + len(noted), chosen=before.chosen + chosen,
        rounded=before.rounded + rounded, flops=(before.flops + flops(tape)[op]) % (1 << 64),
    )  # fmt: skip
    results = [(made[each.ref[0]].content, checksum) for each, checksum in zip(noted, sums, strict=True)]
    return Leaf(
        index=claim.index, node=encoded(tape.nodes[op]), values=values_of(tape.nodes[op], record.values), host=[],
        results=results, before=before, after=after, memory=previous.left, left=left,
    )  # fmt: skip


def entries_of(data: bytes, most: int, op: int) -> tuple[LogReader, int]:
    """Returns the log of one operation alone, and how many entries stand before it."""
    sections = rounding_log.decode(data, max_entries=most)
    before = sum(len(section.positions) for section in sections if section.op < op)
    return LogReader(rounding_log.encode([each for each in sections if each.op == op]), max_entries=most), before
