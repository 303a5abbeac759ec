"""Fetches the transcripts that explain snapshots, and puts the jobs of sharded ones together."""

from __future__ import annotations

from functools import partial

from verifier import checks
from verifier.contact.clients import ProverClient
from verifier.farm import sharded_jobs
from verifier.model import fact_codec
from verifier.model.collected import Collected
from verifier.model.facts import Explanation, SnapshotFacts, TranscriptFacts
from verifier.stages.setting import Setting
from verifier.units import key_of
from weighbridge.core.errors import ProverError, WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript


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
            collected.shards[key] = sharded_jobs.shard_of(snapshot.transcript, claim.ranks, fetch, setting.cache)
        snapshot.shard = collected.shards[key]
    except WeighbridgeError as error:  # what the transcript says about its job is malformed
        snapshot.explanation = error


def transcript(
    setting: Setting, collected: Collected, prover: str, transcript_id: str, *, parent: bool = False
) -> TranscriptFacts:
    """Returns a transcript of a Prover; it is fetched and judged the first time that it is asked for.

    That a `parent` is not there is for the check of parentage to say.
    """
    key = (prover, transcript_id)
    if key not in collected.transcripts:
        facts = TranscriptFacts(id=transcript_id, opened=_open(setting, collected, prover, transcript_id))
        collected.transcripts[key] = facts
        name = f"transcript {transcript_id}"
        found = setting.judged("transcript", key_of(prover, transcript_id), checks.TRANSCRIPT, facts, subject=name)
        collected.report(each for each in found.findings if not (parent and each.id == "transcript.unknown"))
    return collected.transcripts[key]


def _open(
    setting: Setting, collected: Collected, prover: str, transcript_id: str
) -> OpenedTranscript | WeighbridgeError:
    """Returns a transcript from the cache or its Prover; why it could not be had is not asked for twice."""
    unit = ("transcript", key_of(prover, transcript_id))
    known = setting.units.get(*unit, lambda raw: (None if raw is None else fact_codec.error_of(raw),))
    opened: OpenedTranscript | WeighbridgeError
    if known is not None and known[0] is not None:
        opened = known[0]
    elif (here := setting.cache.find(transcript_id)) is not None:  # it was fetched before, or uploaded
        opened = here
    elif not prover:
        opened = ProverError("the transcript that was uploaded is gone, and no Prover is declared; ask for it again")
    elif prover in collected.silent:
        opened = collected.silent[prover]
    else:
        try:
            with ProverClient(prover, setting.credentials) as client:
                opened = setting.cache.get(transcript_id, client.pieces(transcript_id))
        except WeighbridgeError as error:
            opened = error
    failed = opened if isinstance(opened, WeighbridgeError) else None
    if failed is not None:
        collected.remember_silence(prover, failed)
    if known is None:
        setting.units.put(*unit, None if failed is None else fact_codec.error_to(failed))
    return opened
