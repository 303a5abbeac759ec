"""What an inspection has found out so far; its stages fill it in, and its report is made from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verifier.model.facts import CONTRADICTED, EXPLAINED, LogFacts, Shard, SnapshotFacts, TranscriptFacts, by_chip
from verifier.model.lineage import Lineage
from verifier.model.opened_records import RecordFacts
from verifier.model.repeat_facts import RunRepeats
from verifier.model.segments import Replayed
from verifier.model.supplement_facts import Asked, Count
from verifier.model.training import Training
from verifier.model.training import of as training_of
from verifier.registry import Chip
from weighbridge.core.errors import ChipError, Finding, ProverError, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.run_facts import RunFacts
from weighbridge.execution.transcript_facts import OpenedTranscript


def is_silence(error: WeighbridgeError) -> bool:
    """Says whether an error means that there is no answer at an address."""
    return error.reason in (ChipError.code, ProverError.code)


@dataclass(slots=True)
class Collected:
    """Facts and findings of one inspection.

    Attributes:
        chips: The chips drawn, in their order.
        logs: What was read of each, in the same order.
        snapshots: Every snapshot in those logs, chip by chip.
        transcripts: By (Prover's address, identifier): every transcript that a Prover named, and those of the other
            ranks of its job. One Prover's failure is not held against another.
        shards: By (Prover's address, transcript, transcripts of all ranks): the jobs that were put together.
        lineages: Where each of the transcripts' runs began.
        segments: The segments that were replayed whole, by transcript.
        came: By (Prover's address, identifier): what was fetched ahead, or why it did not come.
        records: Records of data sets that Provers were asked to open.
        memories: What weights remember of their segments' batches, as JSON-compatible data for the report.
        examined: By transcript, what was counted in its tapes, or why that could not be.
        scores: By run, by benchmark: what was evaluated.
        findings: All findings, in the order in which they were made.
        sound: UEIDs of the chips whose logs have nothing against them.
        lost: UEIDs of the chips that something ran on which they could not look at; they do not count as verified.
        supplements: Requests for rounding logs that are made on demand.
        repeats: What became of segments that were due while runs went on.
        lineage_replays: Replays that led to a state with which another run began, with the transcript's identifier.
        earlier: By Prover's address: how many such requests earlier inspections made, and how many were answered.
        silent: By address: why a chip or a Prover did not answer. It is not asked again; that may cost a deadline.
    """

    chips: list[Chip] = field(default_factory=list)
    logs: list[LogFacts] = field(default_factory=list)
    snapshots: list[SnapshotFacts] = field(default_factory=list)
    transcripts: dict[tuple[str, str], TranscriptFacts] = field(default_factory=dict)
    shards: dict[tuple[str, str, tuple[str, ...]], Shard | None] = field(default_factory=dict)
    lineages: list[Lineage] = field(default_factory=list)
    segments: list[Replayed] = field(default_factory=list)
    came: dict[tuple[str, str], OpenedTranscript | WeighbridgeError] = field(default_factory=dict)
    records: list[RecordFacts] = field(default_factory=list)
    memories: list[dict[str, Any]] = field(default_factory=list)
    examined: dict[str, RunFacts | WeighbridgeError] = field(default_factory=dict)
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    sound: set[bytes] = field(default_factory=set)
    lost: set[bytes] = field(default_factory=set)
    supplements: list[Asked] = field(default_factory=list)
    repeats: list[RunRepeats] = field(default_factory=list)
    lineage_replays: list[tuple[str, ReplayResult | WeighbridgeError]] = field(default_factory=list)
    earlier: dict[str, Count] = field(default_factory=dict)
    silent: dict[str, WeighbridgeError] = field(default_factory=dict)
    _known: set[tuple[str, str, str, str]] = field(default_factory=set)

    def report(self, findings: Iterable[Finding]) -> None:
        """Keeps findings, each only once: several snapshots may show the same fault of one transcript."""
        for finding in findings:
            key = (finding.id, finding.subject, finding.expected, finding.found)
            if key not in self._known:
                self._known.add(key)
                self.findings.append(finding)

    def remember_silence(self, address: str, error: WeighbridgeError) -> None:
        """Notes that there is no answer at an address, if that is what the error says."""
        if is_silence(error):
            self.silent[address] = error

    def by_chip(self) -> Mapping[bytes, list[SnapshotFacts]]:
        """Returns the snapshots of each chip that has some, by UEID, in the order of its log."""
        return by_chip(self.snapshots)

    def trainings(self) -> list[Training]:
        """Returns what was recognised of each run whose segments were replayed, if that was asked for."""
        opened = {facts.id: facts.opened for facts in self.transcripts.values()}
        found = []
        for replayed in self.segments:
            name = replayed.selection.transcript
            if isinstance(transcript := opened.get(name), OpenedTranscript):
                draft = transcript.draft_digest.hex()
                found.append(training_of(replayed, draft, self.examined.get(name)))
        return [each for each in found if each is not None]

    def verified(self) -> list[bytes]:
        """Returns the UEIDs of the chips that count as verified: log and every snapshot could be verified.

        And every log of their runs that was due while these went on was committed to.
        """
        unexplained = {snapshot.chip.ueid for snapshot in self.snapshots if snapshot.status not in EXPLAINED}
        counted = self.sound - self.lost - unexplained - self.unrepeated()
        return [log.chip.ueid for log in self.logs if log.chip.ueid in counted]

    def unrepeated(self) -> set[bytes]:
        """Returns the UEIDs of the chips of runs whose logs were due while they went on and are missing or false.

        Of a job on several ranks, the chips of all ranks.
        """
        withheld = {name for each in self.repeats if each.withheld for name in (each.transcript, *each.ranks)}
        claimed = {
            snapshot.chip.ueid
            for snapshot in self.snapshots
            if snapshot.transcript is not None and snapshot.transcript.id in withheld
        }
        return claimed | {ueid for each in self.repeats if each.withheld for ueid in each.chips}

    def found_against(self) -> list[bytes]:
        """Returns the UEIDs of the chips on which a violation was seen: they were no more silent than verified ones."""
        seen = {snapshot.chip.ueid for snapshot in self.snapshots if snapshot.status in CONTRADICTED}
        return [log.chip.ueid for log in self.logs if log.chip.ueid in seen]
