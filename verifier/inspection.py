"""One inspection, from the draw to the report.

It collects facts from chips and Provers, replays what they claim, and lets the checks judge. A chip that is dead, a log
that is damaged or a Prover that lies costs its own part of the inspection and no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from cryptography.x509 import Certificate

from verifier import jobs, report
from verifier.cache import Cache
from verifier.checks import (
    chip_clock,
    chip_firmware,
    chip_fork,
    chip_identity,
    chip_log,
    chip_rate,
    chip_witness,
    commitment,
    data,
    interrupts,
    memory,
    positions,
    provenance,
    tapes,
    weights,
    work,
)
from verifier.checks import replay as replay_check
from verifier.clients import ChipClient, ProverClient
from verifier.facts import Explanation, LogFacts, Opening, Plan, Shard, SnapshotFacts, TranscriptFacts, digest
from verifier.firmware import FirmwarePolicy
from verifier.reading import acknowledge, read_log
from verifier.registry import Chip, Registry
from verifier.witness import Witness
from weighbridge.digests import Leaf, region_digest
from weighbridge.errors import ChipError, Finding, ProverError, TranscriptError, UsageError, WeighbridgeError
from weighbridge.identity import Credentials
from weighbridge.replay import Limits, ReplayResult, replay
from weighbridge.tensorfile import raw_bytes
from weighbridge.transcript import Transcript

Progress = Callable[[str, int, int, str], None]
"""Called with (stage, units done, units in all, one sentence). May raise `InspectionStoppedError`."""


class InspectionStoppedError(Exception):
    """The process that runs the inspection wants to end. Not about the input, so no check may take it for a finding."""


class Inspection:
    """Everything that one inspection needs and finds."""

    def __init__(
        self,
        *,
        identifier: str,
        plan: Plan,
        registry: Registry,
        cache: Cache,
        credentials: Credentials,
        manufacturer: Certificate,
        firmware: FirmwarePolicy,
        progress: Progress,
        witness: Witness | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Prepares an inspection that the registry already knows, with the chips drawn.

        Args:
            identifier: As in the registry.
            plan: What to do.
            registry: Where the chips are.
            cache: Where transcripts are kept.
            credentials: The Verifier's own.
            manufacturer: Root certificate that device identities must lead to.
            firmware: Which firmware chips may run.
            progress: Told of every unit of work.
            witness: Who holds the logs that were read before; by default one that cosigns nothing.
            limits: Of each replay.
        """
        self._id, self._plan, self._registry, self._cache = identifier, plan, registry, cache
        self._credentials, self._manufacturer, self._progress = credentials, manufacturer, progress
        self._firmware, self._witness = firmware, witness or Witness(registry, manufacturer)
        self._limits = limits or Limits()
        self._findings: list[Finding] = []
        self._logs: list[LogFacts] = []
        self._snapshots: list[SnapshotFacts] = []
        self._transcripts: dict[tuple[str, str], TranscriptFacts] = {}
        self._shards: dict[tuple[str, str, tuple[str, ...]], Shard | None] = {}
        self._sound: set[bytes] = set()
        self._lost: set[bytes] = set()
        self._silent: dict[str, WeighbridgeError] = {}

    def run(self) -> dict[str, Any]:
        """Does the inspection and returns its report as JSON-compatible data."""
        record = self._registry.inspection(self._id)
        population = len(self._registry.chips())
        chips = [self._registry.chip(ueid) for ueid in self._registry.sampled(self._id)]
        for done, chip in enumerate(chips):
            self._progress("log", done, len(chips), f"reading the log of chip {chip.ueid.hex()}")
            self._inspect_log(chip)
        self._compare_logs()
        self._explain()
        self._replay()
        for snapshot in self._snapshots:
            self._judge(snapshot)
        for chip in chips:
            self._report(positions.check(self._of(chip), self._plan.snapshots))
        verified = [log.chip.ueid for log in self._logs if self._counts_as_sampled(log)]
        return report.build(
            inspection=self._id,
            created_at=record.created_at,
            finished_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            plan=self._plan,
            firmware=self._firmware,
            population=population,
            logs=self._logs,
            snapshots=self._snapshots,
            transcripts=list(self._transcripts.values()),
            findings=self._findings,
            verified=verified,
        )

    def _report(self, findings: Sequence[Finding]) -> None:
        """Keeps findings, each only once: several snapshots may show the same fault of one transcript."""
        known = {(finding.id, finding.subject, finding.expected, finding.found) for finding in self._findings}
        for finding in findings:
            key = (finding.id, finding.subject, finding.expected, finding.found)
            if key not in known:
                known.add(key)
                self._findings.append(finding)

    def _inspect_log(self, chip: Chip) -> None:
        """Reads and checks one chip's log, remembers what was witnessed, and collects its snapshots."""
        log = read_log(chip, self._credentials, self._manufacturer, self._witness)
        self._logs.append(log)
        findings = [
            *chip_identity.check(log),
            *chip_firmware.check(log, self._firmware),
            *chip_log.check(log),
            *chip_clock.check(log),
            *chip_rate.check(log, self._plan),
        ]
        self._report([*findings, *chip_witness.check(log, self._witness.key)])
        if not findings:
            self._sound.add(chip.ueid)
            acknowledge(log, self._credentials, self._witness)
            if log.entries:
                self._registry.witness(chip.ueid, size=len(log.entries), last=log.entries[-1].digest)
        lost = interrupts.check(log, self._plan.snapshots)
        self._report(lost)
        if lost:
            self._lost.add(chip.ueid)
        drafts: list[tuple[int, bytes]] = []
        for index, entry in enumerate(log.entries):
            if isinstance(entry.verified, WeighbridgeError):
                continue
            token = entry.verified.token
            if token.kind == "event" and token.body["name"] == commitment.EVENT:
                drafts.append((index, digest(token, "digest")))
            elif token.kind == "snapshot":
                self._snapshots.append(
                    SnapshotFacts(chip=chip, index=index, verified=entry.verified, drafts=list(drafts))
                )

    def _compare_logs(self) -> None:
        """Looks for one device behind two logs; neither log is worth anything then."""
        findings = chip_fork.check(self._logs)
        self._report(findings)
        self._sound -= {bytes.fromhex(ueid) for finding in findings for ueid in finding.evidence["chips"]}

    def _explain(self) -> None:
        """Asks where every snapshot came from, and fetches the transcripts that the answers name."""
        for done, snapshot in enumerate(self._snapshots):
            self._progress("provenance", done, len(self._snapshots), f"asking where {snapshot.subject} came from")
            if snapshot.chip.prover_address:
                self._ask(snapshot)

    def _ask(self, snapshot: SnapshotFacts) -> None:
        address = snapshot.chip.prover_address
        if address in self._silent:
            snapshot.explanation = self._silent[address]
            return
        try:
            with ProverClient(address, self._credentials) as client:
                snapshot.explanation = client.explain(snapshot.verified.token)
                if snapshot.explanation is not None:
                    fetch = partial(self._fetch, client, address)
                    snapshot.transcript = fetch(snapshot.explanation.transcript_id)
                    snapshot.shard = self._shard(address, snapshot.transcript, snapshot.explanation, fetch)
        except WeighbridgeError as error:
            snapshot.explanation = error
            self._remember_silence(address, error)

    def _shard(
        self, prover: str, facts: TranscriptFacts, claim: Explanation, fetch: Callable[[str], TranscriptFacts]
    ) -> Shard | None:
        """Puts the job of a rank's transcript together, once for each claim about its ranks."""
        key = (prover, facts.id, claim.ranks)
        if key not in self._shards:
            self._shards[key] = jobs.shard_of(facts, claim.ranks, fetch, self._cache)
        return self._shards[key]

    def _remember_silence(self, address: str, error: WeighbridgeError) -> None:
        """Asks nobody twice who did not answer: each attempt may cost a whole deadline."""
        if error.reason in (ChipError.code, ProverError.code):
            self._silent[address] = error

    def _fetch(self, client: ProverClient, prover: str, transcript_id: str) -> TranscriptFacts:
        """Fetches a transcript once from each Prover that names it: one's failure is not held against another."""
        key = (prover, transcript_id)
        if key not in self._transcripts:
            self._progress("fetch", 0, 0, f"fetching transcript {transcript_id[:16]}")
            opened: Transcript | WeighbridgeError
            try:
                opened = self._cache.get(transcript_id, client.pieces(transcript_id))
            except WeighbridgeError as error:
                opened = error
            self._transcripts[key] = TranscriptFacts(id=transcript_id, opened=opened)
            self._report(data.check(self._transcripts[key]))
        return self._transcripts[key]

    def _replay(self) -> None:
        """Replays to every claimed position, transcript by transcript; nothing is replayed twice."""
        claimed = [s for s in self._snapshots if isinstance(s.explanation, Explanation) and s.transcript is not None]
        claimed.sort(key=_position)
        done: dict[tuple[str, int, int, bytes], tuple[ReplayResult | WeighbridgeError, float]] = {}
        for place, snapshot in enumerate(claimed):
            snapshot.opening = self._open(snapshot)
            claim, facts = snapshot.explanation, snapshot.transcript
            if not isinstance(claim, Explanation) or facts is None or not isinstance(snapshot.opening, Opening):
                continue
            if isinstance(facts.opened, WeighbridgeError) or not 0 <= claim.step <= facts.opened.steps:
                continue
            if provenance.is_tail(snapshot) or provenance.lacks_ranks(snapshot):
                continue
            say = partial(self._progress, "replay", place, len(claimed))
            say(f"replaying {facts.opened.manifest.name} to step {claim.step} operation {claim.op}")
            key = (claim.transcript_id, claim.step, claim.op, snapshot.opening.salt)
            if key not in done:
                started = time.monotonic()
                result = self._replay_to(facts, snapshot.shard, claim, snapshot.opening.salt, say)
                done[key] = (result, time.monotonic() - started)
            snapshot.replayed, snapshot.seconds = done[key]
            snapshot.batches = _batches(facts.opened, claim.step, snapshot.opening.salt)
            reached = memory.replayed(snapshot)
            if reached is not None and reached.touched and not snapshot.verified.token.body["safepoint"]:
                further = replace(claim, op=claim.op + 1)
                after = self._replay_to(facts, snapshot.shard, further, snapshot.opening.salt, say)
                if isinstance(after, ReplayResult) and after.verdict == "match":
                    snapshot.after = after

    def _open(self, snapshot: SnapshotFacts) -> Opening | WeighbridgeError:
        address = snapshot.chip.address
        if address in self._silent:
            return self._silent[address]
        try:
            with ChipClient(address, self._credentials, snapshot.chip.ueid) as client:
                return client.open_snapshot(snapshot.verified.token)
        except WeighbridgeError as error:
            self._remember_silence(address, error)
            return error

    def _replay_to(
        self, facts: TranscriptFacts, shard: Shard | None, claim: Explanation, salt: bytes, say: Callable[[str], None]
    ) -> ReplayResult | WeighbridgeError:
        assert not isinstance(facts.opened, WeighbridgeError)
        name = facts.opened.manifest.name
        try:
            if shard is not None:
                return jobs.replay_shard(
                    shard,
                    claim.step,
                    claim.op,
                    salt=salt,
                    device=self._plan.replay_device,
                    limits=self._limits,
                    env=self._plan.replay_env,
                    progress=lambda done, steps: say(f"replaying the job of {name}: {done} of {steps} steps"),
                )
            return replay(
                facts.opened.path,
                device=self._plan.replay_device,
                stop=(claim.step, claim.op),
                salt=salt,
                limits=self._limits,
                env=self._plan.replay_env,
                progress=lambda done, steps: say(f"replaying {name}: {done} of {steps} steps"),
            )
        except UsageError as error:  # the position is one that the transcript does not have
            return TranscriptError(error.message, code="snapshot.position.mismatch", step=claim.step, op=claim.op)
        except WeighbridgeError as error:
            return error

    def _judge(self, snapshot: SnapshotFacts) -> None:
        """Runs the checks over a snapshot and settles its status."""
        policy = self._plan.snapshots
        against = [*provenance.check(snapshot), *replay_check.check(snapshot), *memory.check(snapshot, policy)]
        against += [*weights.check(snapshot), *work.check(snapshot, policy)]
        uncommitted = commitment.check(snapshot)
        self._report([*against, *uncommitted, *tapes.check(snapshot)])
        violated = any(finding.severity == "violation" for finding in against)
        if snapshot.explanation is None:
            snapshot.status = "unexplained"
        elif isinstance(snapshot.explanation, WeighbridgeError) or snapshot.replayed is None:
            snapshot.status = "mismatch" if violated and snapshot.transcript is not None else "unverified"
        elif isinstance(snapshot.replayed, WeighbridgeError):
            snapshot.status = "unverified"
        elif violated:
            snapshot.status = "mismatch"
        elif (found := memory.accounting(snapshot, policy)) is not None and not uncommitted and not found.temporary:
            snapshot.status = "explained"

    def _counts_as_sampled(self, log: LogFacts) -> bool:
        """Whether everything about a chip could be verified: its log, and each of its snapshots by a replay."""
        own = self._of(log.chip)
        return log.chip.ueid in self._sound - self._lost and all(snapshot.status == "explained" for snapshot in own)

    def _of(self, chip: Chip) -> list[SnapshotFacts]:
        return [snapshot for snapshot in self._snapshots if snapshot.chip.ueid == chip.ueid]


def _batches(transcript: Transcript, step: int, salt: bytes) -> list[Leaf]:
    """Returns the batches and free tensors of a step and its neighbours as a chip would list them.

    Whether a chip holds the batch before or after depends on how the program loads data, which no tape tells; and it
    knows of a free tensor once a kernel reads it.
    """
    leaves: list[Leaf] = []
    for near in range(max(0, step - 1), min(transcript.steps, step + 2)):
        try:
            tensors = [*transcript.batch(near).values(), *transcript.free(near).values()]
        except WeighbridgeError:
            continue  # check_data has said so
        leaves += [(len(data), region_digest(data, salt)) for data in map(raw_bytes, tensors)]
    return leaves


def _position(snapshot: SnapshotFacts) -> tuple[str, int, int]:
    claim = snapshot.explanation
    return (claim.transcript_id, claim.step, claim.op) if isinstance(claim, Explanation) else ("", 0, 0)
