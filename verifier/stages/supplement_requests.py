"""Asks Provers for the rounding logs of steps that are about to be replayed, of runs that have their logs on demand.

They are asked for whether or not the replay would match without. Else a Prover could tell by the Verifier's hardware
when it will need them, and a run whose logs no Prover can make would look like any other until it matters.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from verifier.contact.clients import ProverClient
from verifier.contact.supplement_receiving import kept, receive
from verifier.contact.supplement_records import SupplementRecords
from verifier.model import fact_codec
from verifier.model.collected import Collected
from verifier.model.supplement_facts import LATE, REFUSED, Asked, Steps
from verifier.stages.setting import Setting
from verifier.store.cache_room import StorageError
from verifier.units import key_of
from weighbridge.core.errors import Finding, ProverError, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.transcript.supplements import SUFFIX

_FILE = re.compile(rf"(?:rank[ -]([0-9]{{1,4}}): )?([0-9]{{8}}){re.escape(SUFFIX)}", re.ASCII)
"""A supplement in the cache, which a replay may refuse by its name; of a rank, if not that of the snapshot's."""


def ask(setting: Setting, collected: Collected, transcript: OpenedTranscript, steps: Steps) -> None:
    """Asks for the logs on the way from the checkpoint before some steps to their end, each once in an inspection.

    If several Provers show the transcript, they are asked in turn until one has made all. A Prover who let a deadline
    pass, or does not answer, is not asked again in this inspection, as each further request could cost another
    deadline. It counts as asked.
    """
    if not transcript.on_demand:
        return
    begin = max((c for c in transcript.checkpoint_steps if c <= steps[0]), default=0)
    known = [each.steps for each in collected.supplements if each.transcript == transcript.digest]
    missing = [n for n in range(begin, steps[1]) if not any(first <= n < last for first, last in known)]
    provers = [address for address, name in collected.transcripts if address and name == transcript.digest]
    for wanted in _ranges(missing):
        for prover in provers or [""]:
            if _request(setting, collected, transcript, wanted, prover).regenerated:
                break


def ask_ranks(setting: Setting, collected: Collected, job: Path, ranks: Sequence[str], steps: Steps) -> None:
    """Asks for the logs of all ranks of a job, which are replayed together, and puts them beside their transcripts.

    Args:
        setting: The inspection's.
        collected: What was collected; the transcripts of all ranks were opened.
        job: The job's directory in the cache.
        ranks: Identifiers of the transcripts of all ranks.
        steps: (first, last + 1) of the steps that are replayed.
    """
    transcripts = opened(collected, ranks)
    if not any(each.on_demand for each in transcripts):
        return
    common = set.intersection(*(set(each.checkpoint_steps) for each in transcripts))
    begin = max((c for c in common if c <= steps[0]), default=0)
    for each in transcripts:
        if begin < (end := min(steps[1], each.steps)):  # a crash may have cut off this rank before
            ask(setting, collected, each, (begin, end))
    setting.cache.add_supplements(job, transcripts)


def opened(collected: Collected, ranks: Sequence[str]) -> list[OpenedTranscript]:
    """Returns transcripts by their identifiers; all of them were opened."""
    found = {name: facts.opened for (_, name), facts in collected.transcripts.items()}
    return [each for each in map(found.get, ranks) if each is not None and not isinstance(each, WeighbridgeError)]


def _ranges(steps: Sequence[int]) -> list[Steps]:
    """Returns ascending steps as ranges without holes."""
    there = set(steps)
    begins = [step for step in steps if step - 1 not in there]
    ends = [step + 1 for step in steps if step + 1 not in there]
    return list(zip(begins, ends, strict=True))


def _request(setting: Setting, collected: Collected, transcript: OpenedTranscript, wanted: Steps, prover: str) -> Asked:
    """Asks one Prover, unless that was done, and notes what became of it."""
    setting.progress("supplements", 0, 0, f"asking for the rounding logs of steps {wanted[0]} to {wanted[1] - 1}")
    if not collected.supplements:
        collected.earlier.update(SupplementRecords(setting.registry.session).earlier(setting.id))
    asked = setting.units.once(
        "supplements",
        key_of(prover, transcript.digest, list(wanted)),
        partial(_asked, setting, collected, prover, transcript, wanted),
        to=fact_codec.asked_to,
        of=partial(_read, transcript),
    )
    if prover and asked.why is not None:
        collected.remember_silence(prover, asked.why)
    collected.supplements.append(asked)
    return asked


def settle(setting: Setting, collected: Collected) -> None:
    """Counts requests anew whose logs no replay could read: a signed statement with something else beside it is no log.

    What the statement is signed over is the log's digest before compression, so only the confined workers can tell.
    """
    unusable: dict[str, set[int]] = {}
    for transcript, result in _replays(collected):
        for finding in result.findings if isinstance(result, ReplayResult) else ():
            file = _FILE.fullmatch(finding.subject)
            if file is not None and finding.id.startswith("transcript.supplement."):
                owner = _owner(collected, transcript, file[1])
                unusable.setdefault(owner, set()).add(int(file[2]))
    # Of several Provers who were asked for a step, the last one that sent anything sent what was replayed with.
    for place, asked in reversed(list(enumerate(collected.supplements))):
        bad = unusable.get(asked.transcript, set()) & set(range(*asked.steps)) if asked.came else set()
        if bad:
            unusable[asked.transcript] -= bad
            why = asked.why or ProverError("what it sent is not the logs that it signed", code=REFUSED)
            collected.supplements[place] = settled = replace(asked, came=max(0, asked.came - len(bad)), why=why)
            SupplementRecords(setting.registry.session).note(setting.id, settled)


def _owner(collected: Collected, transcript: str, rank: str | None) -> str:
    """Returns the transcript of the rank that a supplement is of, which the replay of a transcript's job refused."""
    if rank is None:
        return transcript
    jobs = (ranks for _, one, ranks in collected.shards if one == transcript and int(rank) < len(ranks))
    return next((ranks[int(rank)] for ranks in jobs), transcript)


def _replays(collected: Collected) -> Iterator[tuple[str, ReplayResult | WeighbridgeError | None]]:
    """Yields what became of every replay, with the transcript's identifier."""
    for snapshot in collected.snapshots:
        if snapshot.transcript is not None:
            yield snapshot.transcript.id, snapshot.replayed
    for segment in collected.segments:
        for result in segment.results.values():
            yield segment.selection.transcript, result
    yield from collected.lineage_replays


def _read(transcript: OpenedTranscript, raw: Any) -> Asked:
    """Reads a request that was stored; one whose logs are gone is done anew.

    Raises:
        StorageError: Fewer logs are in the cache than came. Else what the Verifier lost would count against the Prover.
    """
    asked = fact_codec.asked_of(raw)
    if (there := kept(transcript, asked.steps)) < asked.came:
        raise StorageError(f"of {asked.came} rounding logs that came, {there} are left in the cache; ask for them anew")
    return asked


def _asked(setting: Setting, collected: Collected, prover: str, transcript: OpenedTranscript, steps: Steps) -> Asked:
    records, begun = SupplementRecords(setting.registry.session), time.monotonic()
    deadline, key = setting.plan.regeneration_s, transcript.manifest.public
    came, findings = 0, list[Finding]()
    why: WeighbridgeError | None = _not_asked(collected, prover)
    if why is None:
        got = receive(
            setting.cache,
            partial(ProverClient, prover, setting.credentials),
            transcript,
            steps,
            records.known(transcript.draft_digest, key, steps),
            deadline_s=deadline,
            progress=lambda done, of: setting.transient(
                "supplements", done, of, f"the Prover makes rounding logs: {done} of {of} steps"
            ),
        )
        records.keep(got.signed)
        came, findings, why = len(got.steps), got.findings, got.why
    asked = Asked(
        prover=prover, transcript=transcript.digest, steps=steps, came=came, deadline_s=deadline,
        seconds=time.monotonic() - begun, why=why, findings=findings,
    )  # fmt: skip
    records.note(setting.id, asked)
    return asked


def _not_asked(collected: Collected, prover: str) -> ProverError | None:
    """Returns why a Prover is not asked; None if it is."""
    if not prover:
        return ProverError("the transcript was uploaded, and no Prover's service is known that makes its logs")
    if prover in collected.silent:
        return ProverError(collected.silent[prover].message)
    if any(each.prover == prover and each.why and each.why.reason == LATE for each in collected.supplements):
        return ProverError("it let a deadline pass in this inspection, and is not asked again in it", code=LATE)
    return None
