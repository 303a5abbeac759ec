"""How many replays of one Prover's runs came to no verdict because a bound may be too small for the replaying device?

A difference that few elements next to a rounding boundary would explain accuses no party. It also verifies nothing, and
a Prover can make one at will, by leaving entries out of a rounding log. So they are counted by Prover.
"""

from __future__ import annotations

from collections.abc import Iterator

from verifier.model.collected import Collected
from verifier.model.policies import SNAPSHOTS_AS_DESIGNED, SnapshotPolicy
from weighbridge.core.errors import Finding
from weighbridge.execution.replay_answer import ReplayResult

REPLAY = "replay.inconclusive"

Place = tuple[str, int, int]
"""Transcript, step and operation of a difference: replays that pass the same one are one."""


def check(collected: Collected, policy: SnapshotPolicy = SNAPSHOTS_AS_DESIGNED) -> list[Finding]:
    """Counts differences by Prover, over snapshots and segments."""
    places: dict[str, set[Place]] = {}
    declared: dict[str, str] = {}
    for prover, place, kind in _differences(collected):
        places.setdefault(prover, set()).add(place)
        declared.setdefault(prover, repr(kind) if kind else "the transcripts do not say which: demand that they do")
    return [
        Finding(
            id="replay.inconclusive.many",
            message="replays of this Prover's runs came to no verdict again and again, for want of entries in rounding "
            "logs; none of them is evidence, and honest runs have none: inspect again with a replay device of the kind "
            f"that recorded them ({declared[prover]}), "
            "where each must match",
            expected=f"at most {policy.inconclusive}",
            found=f"{len(found)} differences, first in step {min(found)[1]} of transcript {min(found)[0]}",
            subject=f"Prover {prover}" if prover else "uploaded transcripts",
            severity="warning",
        )
        for prover, found in sorted(places.items())
        if len(found) > policy.inconclusive
    ]


def _differences(collected: Collected) -> Iterator[tuple[str, Place, str]]:
    """Yields (Prover's address, place, declared kind of device) of every inconclusive replay."""
    for snapshot in collected.snapshots:
        if snapshot.transcript is not None and isinstance(snapshot.replayed, ReplayResult):
            yield from _of(snapshot.chip.prover_address, snapshot.transcript.id, snapshot.replayed)
    provers = {identifier: address for address, identifier in collected.transcripts}
    for segment in collected.segments:
        identifier = segment.selection.transcript
        for result in segment.results.values():
            if isinstance(result, ReplayResult):
                yield from _of(provers.get(identifier, ""), identifier, result)


def _of(prover: str, transcript: str, result: ReplayResult) -> Iterator[tuple[str, Place, str]]:
    for finding in result.findings:
        if finding.id == REPLAY and result.first_difference is not None:
            place = transcript, int(result.first_difference["step"]), int(result.first_difference["op"])
            yield prover, place, str(finding.evidence.get("declared", ""))
