"""Fetches the transcripts that explain snapshots, and puts the jobs of sharded ones together.

Provers are asked side by side, so that one whose link is slow, or that sends as slowly as it may, holds no other back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from verifier import checks
from verifier.contact.clients import ProverClient
from verifier.farm import sharded_jobs
from verifier.model import fact_codec
from verifier.model.collected import Collected, is_silence
from verifier.model.facts import Explanation, SnapshotFacts, TranscriptFacts
from verifier.stages.setting import Setting
from verifier.units import key_of
from weighbridge.core.errors import ProverError, WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript

AT_ONCE = 4
"""Provers from which transcripts come at a time; what came is opened in a worker, which may need 4 GiB."""


def run(setting: Setting, collected: Collected) -> None:
    """Fetches every transcript once from each Prover that names it."""
    claimed = [snapshot for snapshot in collected.snapshots if isinstance(snapshot.explanation, Explanation)]
    _side_by_side(setting, collected, claimed)
    for done, snapshot in enumerate(claimed):
        assert isinstance(snapshot.explanation, Explanation)
        name = snapshot.explanation.transcript_id[:16]
        setting.progress("fetch", done, len(claimed), f"fetching transcript {name}")
        _find(setting, collected, snapshot, snapshot.explanation)


def _side_by_side(setting: Setting, collected: Collected, claimed: Sequence[SnapshotFacts]) -> None:
    """Fetches what several Provers have to send; one alone is asked when its transcripts are needed."""
    wanted: dict[str, dict[Explanation, None]] = {}
    for snapshot in claimed:
        assert isinstance(snapshot.explanation, Explanation)
        prover, claim = snapshot.chip.prover_address, snapshot.explanation
        done = ("transcript", key_of(prover, claim.transcript_id)) in setting.units
        if prover and prover not in collected.silent and not done:
            wanted.setdefault(prover, {})[claim] = None
    if len(wanted) < 2:
        return
    setting.progress("fetch", 0, len(claimed), f"fetching from {len(wanted)} Provers, {AT_ONCE} at a time")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for prover, came in zip(wanted, pool.map(partial(_all, setting), wanted, wanted.values()), strict=True):
            collected.came.update({(prover, identifier): each for identifier, each in came.items()})


def _all(
    setting: Setting, prover: str, claims: Iterable[Explanation]
) -> dict[str, OpenedTranscript | WeighbridgeError]:
    """Returns what a Prover sends, until it falls silent: the transcripts that it claims, and those of their jobs."""
    came: dict[str, OpenedTranscript | WeighbridgeError] = {}
    names = [claim.transcript_id for claim in claims]
    ranks = {claim.transcript_id: claim.ranks for claim in claims}
    for name in names:  # which grows
        if not name or name in came:
            continue
        came[name] = each = _fetched(setting, prover, name)
        if not isinstance(each, WeighbridgeError):
            names += _others(each, ranks.get(name, ()))
        elif is_silence(each):
            break
    return came


def _others(transcript: OpenedTranscript, ranks: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the transcripts of its job's ranks, if there are as many as the Prover names."""
    try:
        coordinate = transcript.coordinate()
    except WeighbridgeError:  # malformed: for `sharded_jobs` to say
        return ()
    return ranks if coordinate is not None and coordinate.job.ranks == len(ranks) else ()


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
    elif (prover, transcript_id) in collected.came:
        opened = collected.came.pop((prover, transcript_id))
    elif (here := setting.cache.find(transcript_id)) is not None:  # it was fetched before, or uploaded
        opened = here
    elif not prover:
        opened = ProverError("the transcript that was uploaded is gone, and no Prover is declared; ask for it again")
    elif prover in collected.silent:
        opened = collected.silent[prover]
    else:
        opened = _fetched(setting, prover, transcript_id)
    failed = opened if isinstance(opened, WeighbridgeError) else None
    if failed is not None:
        collected.remember_silence(prover, failed)
    if known is None:
        setting.units.put(*unit, None if failed is None else fact_codec.error_to(failed))
    return opened


def _fetched(setting: Setting, prover: str, transcript_id: str) -> OpenedTranscript | WeighbridgeError:
    """Returns what came of asking a Prover; from any thread. What the cache has is not sent again."""
    try:
        with ProverClient(prover, setting.credentials) as client:
            return setting.cache.get(transcript_id, client.pieces(transcript_id))
    except WeighbridgeError as error:
        return error
