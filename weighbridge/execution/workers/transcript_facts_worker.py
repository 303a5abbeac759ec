"""The process that decodes a transcript for one that must not: `workers.transcript_facts_worker`, confined.

It answers one question about a transcript with plain facts; see `weighbridge.execution.transcript_facts`. The files
were compared with the signed manifest by the one who asks.
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from weighbridge.attest import repeats
from weighbridge.core.digests import region_digest
from weighbridge.core.errors import TranscriptError, WeighbridgeError
from weighbridge.execution.replay_answer import told
from weighbridge.execution.transcript_facts import (
    INSPECTED,
    MOST_DECLARED,
    MOST_LEAVES,
    MOST_SNAPSHOTS,
    MOST_TAPES,
    MOST_WEIGHTS,
)
from weighbridge.execution.weight_distance import distances
from weighbridge.execution.workers.serving import serve
from weighbridge.program import chosen_counts, tape_description
from weighbridge.program import passport as program_passport
from weighbridge.program.brought_state import beside_inputs
from weighbridge.program.chosen_bits import CHANNELS, ChosenBits
from weighbridge.program.idle_inputs import idle_names
from weighbridge.program.origins import analyse
from weighbridge.program.tape_checks import declared_programs, examine
from weighbridge.transcript.data import DataCommitment, OrderSeed, VerifiableOrder
from weighbridge.transcript.job_record import MeshCoordinate
from weighbridge.transcript.log_kinds import LOGS
from weighbridge.transcript.parentage import declared, entered, held
from weighbridge.transcript.reader import Transcript, open_unchanged
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.tensor_file import raw_bytes

COMPARED = 8
"""Batches of each kind that a test of memorisation looks at: the last ones of a segment, and later ones."""


def facts(transcript: Transcript) -> dict[str, Any]:
    """Returns what a Verifier has to know of a transcript to place snapshots in it."""
    recorded = [
        [ueid.hex(), index, record.step, op] for record in transcript.records() for ueid, index, op in record.snapshots
    ]
    beside = [each for resumption in transcript.resumptions for each in resumption.snapshots]
    beside += transcript.notes.snapshots if transcript.notes is not None else ()
    if max(len(recorded), len(beside)) > MOST_SNAPSHOTS:
        raise TranscriptError(f"the transcript names more than {MOST_SNAPSHOTS} snapshots; ask for it in parts")
    return {
        "draft": transcript.draft_digest.hex(),
        "heads": _packed(transcript.head(step) for step in range(transcript.steps)),
        "states": _packed(record.state for record in transcript.records()),
        "outputs": _packed(record.outputs for record in transcript.records()) if transcript.on_demand else None,
        "recorded": recorded,
        "beside": [[ueid.hex(), index, step, op] for ueid, index, step, op in beside],
        "resumptions": [[r.step, r.begin] for r in transcript.resumptions],
        "returned": sorted(
            {before for (step, _), (before, _) in transcript.returned.tensors.items() if step < transcript.steps}
        ),
        "data": None if transcript.data is None else _data(transcript.data, transcript.draft.get("seed")),
        "seed": _seed(transcript.draft.get("seed")),
        "logs": transcript.draft.get(LOGS) or "full",
        "initialises": _or_error(transcript.initialises),
        "parent": _or_error(lambda: _parent(transcript)),
        "coordinate": _or_error(lambda: _coordinate(transcript)),
        "repeats": _or_error(lambda: _repeats(transcript)),
        "declared": _declared(transcript.draft.get("metadata")),
    }


def data(transcript: Transcript) -> dict[str, Any]:
    """Compares the batches with their records and with the data commitment."""
    return {"findings": told(transcript.check_data())}


def weights(transcript: Transcript) -> dict[str, Any]:
    """Measures how far the weights moved between checkpoints; of very many tensors only together."""
    found = distances(transcript)
    if sum(map(len, found.values())) > MOST_WEIGHTS:
        found = {begin: {"": named[""]} for begin, named in found.items()}
    return {
        "segments": [
            [begin, [[name, change if math.isfinite(change) else None] for name, change in named.items()]]
            for begin, named in found.items()
        ]
    }


def batches(transcript: Transcript, step: int, salt: str) -> dict[str, Any]:
    """Lists batches and undeclared tensors of a step and its neighbours as a chip would."""
    leaves: list[tuple[int, bytes]] = []
    for near in range(max(0, step - 1), min(transcript.steps, step + 2)):
        try:
            tensors = [*transcript.batch(near).values(), *transcript.undeclared(near).values()]
        except WeighbridgeError:
            continue  # the comparison of the data says so
        leaves += [(len(raw), region_digest(raw, bytes.fromhex(salt))) for raw in map(raw_bytes, tensors)]
    return _leaves(leaves)


def given(transcript: Transcript, salt: str, trained: bool) -> dict[str, Any]:
    """Lists what entered W_0 from outside, or only what weights and what follows from them alone began with."""
    tapes = cache(lambda digest: Tape.decode(transcript.tape(digest)))
    idle, key = idle_names(transcript, tapes), bytes.fromhex(salt)
    if not trained or not transcript.steps:
        return _leaves(list(entered(transcript, key, idle).elements()))
    beside = examine(transcript, tapes).beside_training(tapes)
    idle |= beside_inputs(tapes(transcript.step(0).tape), beside)
    return _leaves(list(entered(transcript, key, idle, beside).elements()))


def state(transcript: Transcript, step: int, salt: str, made: bool) -> dict[str, Any]:
    """Lists what the checkpoint before a step holds, or only what the run made of it."""
    brought = set[str]()
    if made:
        tapes = cache(lambda digest: Tape.decode(transcript.tape(digest)))
        brought = examine(transcript, tapes).brought(transcript, tapes, step)
    return _leaves(list(held(transcript.checkpoint(step), bytes.fromhex(salt), brought).elements()))


def chosen(transcript: Transcript, before: list[str]) -> dict[str, Any]:
    """Counts what a run and those that it follows from chose: their programs one after the other, by one code."""
    known = chosen_counts.Known()
    bits: Counter[str] = Counter()
    for each in (*(open_unchanged(path, INSPECTED) for path in before), transcript):
        tapes = cache(lambda digest, each=each: Tape.decode(each.tape(digest)))
        ledger = ChosenBits()
        chosen_counts.count(each, tapes, analyse(each, tapes), ledger, known)
        bits.update({channel: ledger.total(channel) for channel in CHANNELS})
    return {"bits": {channel: total for channel, total in bits.items() if total}}


def used(transcript: Transcript, records: list[int]) -> dict[str, Any]:
    """Says which of some records any step used."""
    asked = set(records)
    return {"used": sorted({record for step in transcript.records() for record in step.records} & asked)}


def comparable(transcript: Transcript, begin: int, end: int) -> dict[str, Any]:
    """Names the steps whose batches to compare: the last ones of a segment, and later ones with other records.

    Both are empty if there are none to compare: an edit has no batch, and after the last segment nothing comes.
    """

    def usable(step: int) -> bool:
        record = transcript.step(step)
        return record.kind == "step" and bool(record.record_digests)

    own = [step for step in range(begin, end) if usable(step)][-COMPARED:]
    seen = {record for step in range(begin, end) for record in transcript.step(step).record_digests}
    control: list[int] = []
    for step in range(end, transcript.steps):
        if usable(step) and not seen & set(transcript.step(step).record_digests):
            control.append(step)
        if len(control) == COMPARED:
            break
    return {"own": own, "control": control} if own and control else {"own": [], "control": []}


def summary(transcript: Transcript) -> dict[str, Any]:
    """Counts what `weighbridge show` prints."""
    kinds: Counter[str] = Counter()
    programs: Counter[bytes] = Counter()
    undeclared = 0
    for record in transcript.records():
        kinds[record.kind] += 1
        programs[record.tape] += 1
        undeclared += len(record.free)
    first = transcript.programs()
    return {
        "kinds": list(kinds.items()),
        "tapes": [[digest.hex(), count, first[digest]] for digest, count in programs.most_common(MOST_TAPES)],
        "fixed": declared_programs(transcript) is not None,
        "undeclared": undeclared,
    }


def program(transcript: Transcript, tape: str | None, step: int | None, operations: bool) -> dict[str, Any]:
    """Describes a program, as `weighbridge tape show` prints it."""
    return tape_description.describe(transcript, tape, step, operations=operations)


def passport(transcript: Transcript) -> dict[str, Any]:
    """Returns the passport of the programs, as `weighbridge tape passport` prints it."""
    return program_passport.passport(transcript, cache(lambda digest: Tape.decode(transcript.tape(digest))))


QUESTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    each.__name__: each
    for each in (facts, data, weights, batches, given, state, chosen, used, comparable, summary, program, passport)
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a request of `weighbridge.execution.transcript_facts`."""
    transcript = open_unchanged(request["path"], INSPECTED)
    return QUESTIONS[request["question"]](transcript, **request["about"])


def _packed(digests: Any) -> str:
    return base64.b64encode(b"".join(digests)).decode()


def _leaves(leaves: list[tuple[int, bytes]]) -> dict[str, Any]:
    if len(leaves) > MOST_LEAVES:
        raise TranscriptError(f"more than {MOST_LEAVES} tensors are to be compared here; ask for the run in parts")
    return {"leaves": [[size, digest.hex()] for size, digest in leaves]}


def _or_error(what: Callable[[], Any]) -> Any:
    """Returns a fact, or in its place why there is none."""
    try:
        return {"is": what()}
    except WeighbridgeError as error:
        return {"error": {"code": error.reason, "message": error.message}}


def _data(commitment: DataCommitment, seed: Any) -> dict[str, Any]:
    order = "listed"
    if isinstance(commitment.order, VerifiableOrder):
        order = "verifiable"
    elif isinstance(commitment.order, OrderSeed):
        order = "seeded"
    follows = order == "verifiable" and seed == commitment.seed()
    chosen = _seed(commitment.order.seed) if isinstance(commitment.order, OrderSeed) else None
    return {
        "root": commitment.root().hex(), "count": len(commitment), "order": order, "seed_follows": follows,
        "seed": chosen,
    }  # fmt: skip


def _seed(raw: Any) -> str | None:
    """A seed as a text: it may have more bits than numbers of an answer."""
    return f"{raw:x}" if type(raw) is int and 0 <= raw < 1 << 64 else None


def _parent(transcript: Transcript) -> Any:
    parent = declared(transcript)
    return None if parent is None else [parent.transcript, parent.step, parent.state.hex()]


def _coordinate(transcript: Transcript) -> Any:
    coordinate = MeshCoordinate.of(transcript.draft)
    return None if coordinate is None else [coordinate.job.encode().hex(), coordinate.rank]


def _repeats(transcript: Transcript) -> list[Any] | None:
    said = repeats.from_map(transcript.draft.get(repeats.KEY))
    return None if said is None else [said.beacon.hex(), said.share, said.delay_s]


def _declared(raw: Any) -> list[list[str]]:
    """The texts in the draft's metadata; numbers and truth values as texts too."""
    if not isinstance(raw, dict):
        return []
    return [
        [str(name)[:200], str(value)[:4000]]
        for name, value in list(raw.items())[:MOST_DECLARED]
        if isinstance(value, str | int | float)
    ]


def main() -> None:
    """Answers one request."""
    serve(lambda request, confined, send: answer(request), executes=False)


if __name__ == "__main__":
    main()
