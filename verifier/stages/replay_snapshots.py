"""Opens the snapshots and replays to every claimed position; nothing is replayed twice."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from verifier.checks import memory, provenance
from verifier.contact.clients import ChipClient
from verifier.model import fact_codec
from verifier.model.collected import Collected
from verifier.model.facts import MATCHES, Cell, Explanation, Opening, SnapshotFacts
from verifier.model.replay_task import Outcome, Task
from verifier.model.segments import segments
from verifier.stages import supplement_requests
from verifier.stages.replay_runner import replayed, task
from verifier.stages.setting import Setting
from verifier.units import key_of
from weighbridge.attest.tokens import shown
from weighbridge.core.digests import Leaf
from weighbridge.core.errors import TranscriptError, UsageError, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.transcript_facts import OpenedTranscript


def run(setting: Setting, collected: Collected) -> None:
    """Replays to every claimed position, transcript by transcript."""
    claimed = [s for s in collected.snapshots if isinstance(s.explanation, Explanation) and s.transcript is not None]
    claimed.sort(key=_position)
    for done, snapshot in enumerate(claimed):
        setting.progress("open", done, len(claimed), f"opening {snapshot.subject}")
        snapshot.opening = opening = setting.units.once(
            "opening",
            f"{snapshot.chip.ueid.hex()}/{snapshot.index}",
            partial(_open, setting, collected, snapshot),
            to=fact_codec.opening_to,
            of=fact_codec.opening_of,
        )
        if isinstance(opening, WeighbridgeError):
            collected.remember_silence(snapshot.chip.address, opening)
    tasks = {id(s): found for s in claimed if (found := _task(setting, s)) is not None}
    for snapshot in claimed:
        if id(snapshot) in tasks:
            _supplement(setting, collected, snapshot)
    setting.progress("replay", 0, len(tasks), f"replaying to {len(tasks)} positions")
    outcomes = replayed(setting, "replay", list(tasks.values()))
    further: dict[int, Task] = {}
    for snapshot in claimed:
        if id(snapshot) in tasks:
            _take(snapshot, outcomes[tasks[id(snapshot)].key])
            reached = memory.replayed(snapshot)
            if reached is not None and reached.touched and not shown(snapshot.verified.token)["safepoint"]:
                after = _task(setting, snapshot, further=1)
                assert after is not None
                further[id(snapshot)] = after
    outcomes = replayed(setting, "replay", list(further.values()))
    for snapshot in claimed:
        if id(snapshot) in further:
            result = outcomes[further[id(snapshot)].key].result
            if isinstance(result, ReplayResult) and result.verdict in MATCHES:
                snapshot.after = result


def _open(setting: Setting, collected: Collected, snapshot: SnapshotFacts) -> Opening | WeighbridgeError:
    address = snapshot.chip.address
    if address in collected.silent:
        return collected.silent[address]
    try:
        with ChipClient(address, setting.credentials, snapshot.chip.ueid) as client:
            return client.open_snapshot(snapshot.verified.token)
    except WeighbridgeError as error:
        return error


def _task(setting: Setting, snapshot: SnapshotFacts, *, further: int = 0) -> Task | None:
    """Returns the replay to a snapshot's position, or some operations further; None if there is nothing to replay."""
    claim, facts = snapshot.explanation, snapshot.transcript
    if not isinstance(claim, Explanation) or facts is None or not isinstance(snapshot.opening, Opening):
        return None
    if isinstance(facts.opened, WeighbridgeError) or not 0 <= claim.step <= facts.opened.steps:
        return None
    if provenance.is_tail(snapshot) or provenance.lacks_ranks(snapshot):
        return None
    stop, salt = (claim.step, claim.op + further), snapshot.opening.salt
    alone = task(setting, facts.opened, stop=stop, salt=salt)
    if snapshot.shard is None:
        return alone
    assert not isinstance(snapshot.shard.job, WeighbridgeError)
    rank, path = snapshot.shard.coordinate.rank, snapshot.shard.job
    if setting.plan.sharded == "all":
        return replace(alone, key=key_of("job", list(claim.ranks), rank, stop, salt), path=path, rank=rank)
    if not isinstance(snapshot.cell, Cell):
        return None
    key = key_of("cell", list(claim.ranks), rank, list(snapshot.cell.steps), stop, salt)
    return replace(alone, key=key, path=path, rank=rank, results=snapshot.cell.results)


def _supplement(setting: Setting, collected: Collected, snapshot: SnapshotFacts) -> None:
    """Asks for the rounding logs on the way to a snapshot; for those of its whole segment if that is replayed too."""
    claim, facts = snapshot.explanation, snapshot.transcript
    assert isinstance(claim, Explanation)
    assert facts is not None
    assert not isinstance(facts.opened, WeighbridgeError)
    at = min(claim.step, facts.opened.steps - 1)
    steps = at, at + 1
    if setting.plan.segments:
        steps = next(each for each in segments(facts.opened) if each[0] <= at < each[1])
    if snapshot.shard is None:
        supplement_requests.ask(setting, collected, facts.opened, steps)
        return
    job = snapshot.shard.job
    assert not isinstance(job, WeighbridgeError)
    if isinstance(snapshot.cell, Cell):  # this rank is replayed alone
        supplement_requests.ask(setting, collected, facts.opened, snapshot.cell.steps)
        setting.cache.add_supplements(job, supplement_requests.opened(collected, claim.ranks))
    else:
        supplement_requests.ask_ranks(setting, collected, job, claim.ranks, steps)


def _take(snapshot: SnapshotFacts, outcome: Outcome) -> None:
    """Notes what the replay to a snapshot's position found, and what batches were near."""
    claim, facts, opening = snapshot.explanation, snapshot.transcript, snapshot.opening
    assert isinstance(claim, Explanation)
    assert isinstance(opening, Opening)
    assert facts is not None
    assert not isinstance(facts.opened, WeighbridgeError)
    result = outcome.result
    if isinstance(result, UsageError):  # the position is one that the transcript does not have
        result = TranscriptError(result.message, code="snapshot.position.mismatch", step=claim.step, op=claim.op)
    snapshot.replayed, snapshot.seconds = result, outcome.seconds
    snapshot.batches = batches(facts.opened, claim.step, opening.salt)


def batches(transcript: OpenedTranscript, step: int, salt: bytes) -> list[Leaf]:
    """Returns the batches and undeclared tensors of a step and its neighbours as a chip would list them."""
    try:
        return transcript.batches(step, salt)
    except WeighbridgeError:
        return []  # the check of data has said so


def _position(snapshot: SnapshotFacts) -> tuple[str, int, int]:
    claim = snapshot.explanation
    return (claim.transcript_id, claim.step, claim.op) if isinstance(claim, Explanation) else ("", 0, 0)
