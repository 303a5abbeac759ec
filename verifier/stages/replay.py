"""Opens the snapshots and replays to every claimed position; nothing is replayed twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from verifier import jobs
from verifier.checks import memory, provenance
from verifier.clients import ChipClient
from verifier.collected import Collected
from verifier.facts import Explanation, Opening, Shard, SnapshotFacts, TranscriptFacts
from verifier.stages.setting import Setting
from weighbridge.digests import Leaf, region_digest
from weighbridge.errors import TranscriptError, UsageError, WeighbridgeError
from weighbridge.replay import ReplayResult, replay
from weighbridge.tensorfile import raw_bytes
from weighbridge.transcript import Transcript


def run(setting: Setting, collected: Collected) -> None:
    """Replays to every claimed position, transcript by transcript."""
    claimed = [s for s in collected.snapshots if isinstance(s.explanation, Explanation) and s.transcript is not None]
    claimed.sort(key=_position)
    done: dict[tuple[str, int, int, bytes], tuple[ReplayResult | WeighbridgeError, float]] = {}
    for place, snapshot in enumerate(claimed):
        snapshot.opening = _open(setting, collected, snapshot)
        claim, facts = snapshot.explanation, snapshot.transcript
        if not isinstance(claim, Explanation) or facts is None or not isinstance(snapshot.opening, Opening):
            continue
        if isinstance(facts.opened, WeighbridgeError) or not 0 <= claim.step <= facts.opened.steps:
            continue
        if provenance.is_tail(snapshot) or provenance.lacks_ranks(snapshot):
            continue
        say = partial(setting.progress, "replay", place, len(claimed))
        say(f"replaying {facts.opened.manifest.name} to step {claim.step} operation {claim.op}")
        key = (claim.transcript_id, claim.step, claim.op, snapshot.opening.salt)
        if key not in done:
            started = time.monotonic()
            result = _replay_to(setting, facts, snapshot.shard, claim, snapshot.opening.salt, say)
            done[key] = (result, time.monotonic() - started)
        snapshot.replayed, snapshot.seconds = done[key]
        snapshot.batches = batches(facts.opened, claim.step, snapshot.opening.salt)
        reached = memory.replayed(snapshot)
        if reached is not None and reached.touched and not snapshot.verified.token.body["safepoint"]:
            further = replace(claim, op=claim.op + 1)
            after = _replay_to(setting, facts, snapshot.shard, further, snapshot.opening.salt, say)
            if isinstance(after, ReplayResult) and after.verdict == "match":
                snapshot.after = after


def _open(setting: Setting, collected: Collected, snapshot: SnapshotFacts) -> Opening | WeighbridgeError:
    address = snapshot.chip.address
    if address in collected.silent:
        return collected.silent[address]
    try:
        with ChipClient(address, setting.credentials, snapshot.chip.ueid) as client:
            return client.open_snapshot(snapshot.verified.token)
    except WeighbridgeError as error:
        collected.remember_silence(address, error)
        return error


def _replay_to(
    setting: Setting,
    facts: TranscriptFacts,
    shard: Shard | None,
    claim: Explanation,
    salt: bytes,
    say: Callable[[str], None],
) -> ReplayResult | WeighbridgeError:
    assert not isinstance(facts.opened, WeighbridgeError)
    name = facts.opened.manifest.name
    plan = setting.plan
    try:
        if shard is not None:
            return jobs.replay_shard(
                shard,
                claim.step,
                claim.op,
                salt=salt,
                device=plan.replay_device,
                limits=setting.limits,
                env=plan.replay_env,
                progress=lambda done, steps: say(f"replaying the job of {name}: {done} of {steps} steps"),
            )
        return replay(
            facts.opened.path,
            device=plan.replay_device,
            stop=(claim.step, claim.op),
            salt=salt,
            limits=setting.limits,
            env=plan.replay_env,
            progress=lambda done, steps: say(f"replaying {name}: {done} of {steps} steps"),
        )
    except UsageError as error:  # the position is one that the transcript does not have
        return TranscriptError(error.message, code="snapshot.position.mismatch", step=claim.step, op=claim.op)
    except WeighbridgeError as error:
        return error


def batches(transcript: Transcript, step: int, salt: bytes) -> list[Leaf]:
    """Returns the batches and free tensors of a step and its neighbours as a chip would list them.

    Whether a chip holds the batch before or after depends on how the program loads data, which no tape tells; and it
    knows of a free tensor once a kernel reads it.
    """
    leaves: list[Leaf] = []
    for near in range(max(0, step - 1), min(transcript.steps, step + 2)):
        try:
            tensors = [*transcript.batch(near).values(), *transcript.free(near).values()]
        except WeighbridgeError:
            continue  # the check of data has said so
        leaves += [(len(data), region_digest(data, salt)) for data in map(raw_bytes, tensors)]
    return leaves


def _position(snapshot: SnapshotFacts) -> tuple[str, int, int]:
    claim = snapshot.explanation
    return (claim.transcript_id, claim.step, claim.op) if isinstance(claim, Explanation) else ("", 0, 0)
