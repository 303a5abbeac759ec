"""Finds out which segments were due while runs went on, and asks for the logs that Provers committed to then.

Of very many commitments only some are compared, drawn with the plan's seed: their logs come with the statements.
"""

from __future__ import annotations

from collections.abc import Sequence

from verifier.contact.supplement_receiving import roundings
from verifier.model import repeat_facts, seeded_draw
from verifier.model.collected import Collected
from verifier.model.facts import LogFacts
from verifier.model.repeat_facts import Repeat, RunRepeats
from verifier.stages import supplement_requests
from verifier.stages.replay_segments import explaining
from verifier.stages.setting import Setting
from weighbridge.attest.beacon import Beacon, verify_round
from weighbridge.attest.repeats import Declared
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.transcript.job_record import JobRecord

MOST_COMPARED = 16
"""Segments of one run whose logs are compared with the commitments to them."""


def run(setting: Setting, collected: Collected) -> None:
    """Looks at each run that explains snapshots and declares repeats; of jobs, at each rank for itself."""
    runs = [(transcript, sampled) for transcript, sampled, _ in explaining(collected, "each").values()]
    for transcript, sampled in runs:
        logs = repeat_facts.logs_of(transcript, collected.logs)
        chips, ranks = [log.chip.ueid for log in logs], _ranks(collected, transcript)
        try:
            declared = transcript.repeats()
        except WeighbridgeError as error:
            collected.repeats.append(RunRepeats(transcript=transcript.digest, ranks=ranks, chips=chips, declared=error))
            continue
        if declared is None or not transcript.on_demand:
            continue
        beacon = setting.beacon
        if beacon is None or beacon.info.chain != declared.beacon:
            collected.repeats.append(
                RunRepeats(transcript=transcript.digest, ranks=ranks, chips=chips, declared=declared)
            )
            continue
        setting.progress("repeats", 0, 0, f"looking for the logs that were due while {transcript.manifest.name} ran")
        others = _heads([each for each, _ in runs], transcript)
        found = repeat_facts.placed(transcript, declared, logs, beacon.info, reached=max(sampled), others=others)
        found.ranks = ranks
        _decide(transcript, declared, found, beacon, logs)
        _compare(setting, collected, transcript, found.segments)
        collected.repeats.append(found)


def _ranks(collected: Collected, transcript: OpenedTranscript) -> list[str]:
    """Returns the transcripts of the ranks of a job that its Prover shows; of no job, this one alone."""
    own, found = _job(transcript), {transcript.digest}
    provers = {address for address, name in collected.transcripts if name == transcript.digest}
    for (address, name), facts in collected.transcripts.items():
        if own is None or address not in provers or not isinstance(facts.opened, OpenedTranscript):
            continue  # another Prover could name this job to have its chips counted as withheld
        if _job(facts.opened) == own:
            found.add(name)
    return sorted(found)


def _job(transcript: OpenedTranscript) -> JobRecord | None:
    try:
        coordinate = transcript.coordinate()
    except WeighbridgeError:
        return None
    return None if coordinate is None else coordinate.job


def _heads(runs: Sequence[OpenedTranscript], transcript: OpenedTranscript) -> set[bytes]:
    """Returns the running heads of the other runs that are looked at here, whose segments a chip may log too.

    Not those of another transcript of one draft: it is the run as it was before the Prover recorded it otherwise. Nor
    those of a run that only explains another one, as a parent does: what was due of it is asked nowhere.
    """
    return {
        each.head(step)
        for each in runs
        if each.on_demand and each.draft_digest != transcript.draft_digest
        for step in range(each.steps)
    }


def _decide(
    transcript: OpenedTranscript, declared: Declared, found: RunRepeats, beacon: Beacon, logs: Sequence[LogFacts]
) -> None:
    asked_ms = min((log.asked_ms for log in logs), default=0)  # of no log no round is known either
    for segment in found.segments:
        if segment.round is not None:
            value = _value(beacon, segment.round)
            heads = repeat_facts.heads_of(transcript, (segment.begin, segment.end))
            due = None if value is None else declared.due(value, transcript.draft_digest, heads)
            repeat_facts.decide(segment, due, asked_ms)


def _value(beacon: Beacon, number: int) -> bytes | None:
    """Returns the randomness of a round; None if it is not here, or is not the beacon's."""
    try:
        value = beacon.value(number)
        if value is None or value.number != number:
            return None
        verify_round(beacon.info, value)
    except WeighbridgeError:
        return None
    return value.randomness


def _compare(setting: Setting, collected: Collected, transcript: OpenedTranscript, segments: Sequence[Repeat]) -> None:
    """Asks for the logs of segments that were committed to in time."""
    by_begin = {each.begin.to_bytes(8): each for each in segments if each.state == "committed"}
    if not by_begin:
        return
    count = min(MOST_COMPARED, len(by_begin))
    for name in sorted(seeded_draw.draw(by_begin, count, setting.plan.seed)):
        segment = by_begin[name]
        steps = segment.begin, segment.end
        supplement_requests.ask(setting, collected, transcript, steps)
        heads = repeat_facts.heads_of(transcript, steps)
        repeat_facts.compare(segment, transcript.draft_digest, heads, roundings(transcript, steps))
