"""Fetches the transcripts that explain snapshots, and puts the jobs of sharded ones together."""

from __future__ import annotations

from functools import partial

from verifier import checks, jobs
from verifier.checking import judge
from verifier.clients import ProverClient
from verifier.collected import Collected
from verifier.facts import Explanation, SnapshotFacts, TranscriptFacts
from verifier.stages.setting import Setting
from weighbridge.errors import WeighbridgeError
from weighbridge.transcript import Transcript


def run(setting: Setting, collected: Collected) -> None:
    """Fetches every transcript once from each Prover that names it."""
    claimed = [snapshot for snapshot in collected.snapshots if isinstance(snapshot.explanation, Explanation)]
    for done, snapshot in enumerate(claimed):
        assert isinstance(snapshot.explanation, Explanation)
        name = snapshot.explanation.transcript_id[:16]
        setting.progress("fetch", done, len(claimed), f"fetching transcript {name}")
        _find(setting, collected, snapshot, snapshot.explanation)


def _find(setting: Setting, collected: Collected, snapshot: SnapshotFacts, claim: Explanation) -> None:
    """Finds the transcript of a claim, and if it is one rank's those of all others."""
    prover = snapshot.chip.prover_address
    fetch = partial(transcript, setting, collected, prover)
    snapshot.transcript = fetch(claim.transcript_id)
    key = (prover, claim.transcript_id, claim.ranks)
    try:
        if key not in collected.shards:
            collected.shards[key] = jobs.shard_of(snapshot.transcript, claim.ranks, fetch, setting.cache)
        snapshot.shard = collected.shards[key]
    except WeighbridgeError as error:  # what the transcript says about its job is malformed
        snapshot.explanation = error


def transcript(setting: Setting, collected: Collected, prover: str, transcript_id: str) -> TranscriptFacts:
    """Returns a transcript of a Prover; it is fetched and judged the first time that it is asked for."""
    key = (prover, transcript_id)
    if key not in collected.transcripts:
        facts = TranscriptFacts(id=transcript_id, opened=_open(setting, collected, prover, transcript_id))
        collected.transcripts[key] = facts
        found = judge(checks.TRANSCRIPT, facts, setting.given, subject=f"transcript {transcript_id}")
        collected.report(found.findings)
    return collected.transcripts[key]


def _open(setting: Setting, collected: Collected, prover: str, transcript_id: str) -> Transcript | WeighbridgeError:
    if prover in collected.silent:
        return collected.silent[prover]
    try:
        with ProverClient(prover, setting.credentials) as client:
            return setting.cache.get(transcript_id, client.pieces(transcript_id))
    except WeighbridgeError as error:
        collected.remember_silence(prover, error)
        return error
