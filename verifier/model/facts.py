"""What an inspection collects. The checks are functions over these facts; they fetch nothing themselves.

A field that could not be obtained holds the `WeighbridgeError` that says why, so that a missing fact is a fact too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from verifier.model.policies import (
    SEGMENTS_AS_DESIGNED,
    SNAPSHOTS_AS_DESIGNED,
    TRANSCRIPTS_AS_DESIGNED,
    DrawPolicy,
    SegmentPolicy,
    SnapshotPolicy,
    TranscriptPolicy,
)
from verifier.registry import Chip
from verifier.registry.transitions import Contradiction
from weighbridge.attest.tlog import Checkpoint, Note
from weighbridge.attest.tokens import Token, Verified, shown
from weighbridge.attest.work import Work
from weighbridge.core.digests import Leaf
from weighbridge.core.errors import Finding, UsageError, WeighbridgeError
from weighbridge.core.merkle import EMPTY_ROOT
from weighbridge.execution.given_terms import GIVEN, MAX_OPENINGS
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.transcript.job_record import MeshCoordinate

if TYPE_CHECKING:
    from weighbridge.execution.transcript_facts import OpenedTranscript  # its module loads PyTorch; clients need none

REPLAY_VARIABLES = frozenset(
    {
        "ATEN_CPU_CAPABILITY",
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDA_VISIBLE_DEVICES",
        "MKL_CBWR",
        "MKL_ENABLE_INSTRUCTIONS",
        "MKL_NUM_THREADS",
        "NUMBA_NUM_THREADS",
        "OMP_NUM_THREADS",
        "ONEDNN_MAX_CPU_ISA",
    }
)
"""Environment variables that a plan may set for the replay worker. Others could make it load foreign code."""

_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,2})?")

Sharded = Literal["all", "cells"]
"""How a snapshot of one rank of a job is replayed: with all ranks, or alone with collectives' results as given."""

CHUNKS = 300
"""Chunks that are checked of each cell: a false share of one in a hundred is found 95 times in a hundred."""

REGENERATION_SECONDS = 3600.0
"""For the rounding logs of one segment. The Prover executes it again for them, which takes as long as recording it."""


def number(token: Token, name: str) -> int:
    """Returns an integer claim of a verified token's body, which the token's schema has.

    Raises:
        TokenError: The token hides it.
    """
    value = shown(token)[name]
    assert isinstance(value, int)
    return value


def digest(token: Token, name: str) -> bytes:
    """Returns a digest in a verified token's body; a claim that was not made is empty.

    Raises:
        TokenError: The token hides it.
    """
    value = shown(token)[name]
    assert isinstance(value, bytes)
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What an inspection sets out to do; everything that its outcome may depend on.

    Attributes:
        samples: Chips to draw (s).
        seed: Seed of the draw: 16 to 64 bytes, or what a draw that was committed to came to; empty before that.
        flops_threshold: Size of the violation not to miss, in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do a day (a).
        period_days: Monitoring period in days (T_m); the run is taken to be as long (T = T_m).
        snapshot_rate_per_day: Mean snapshots per chip and day (f).
        replay_device: Torch device of the replay.
        replay_env: Environment variables for the replay worker, of `REPLAY_VARIABLES`.
        snapshots: The caps of the checks of snapshots and interrupts.
        sharded: How snapshots of jobs on several ranks are replayed: `all` ranks, or `cells`: the rank alone, with the
            results of its collectives taken as given, and chunks of them checked.
        chunks: How many chunks of the results of each cell to check.
        peak_flops: The most FLOPs that a chip can do a second; None if the catalogue's figure for its type holds.
        segments: Which segments to replay whole.
        draw: How the chips are drawn, if no seed is given.
        regeneration_s: Seconds that a Prover has to make the rounding logs of one segment of a run that has its logs on
            demand.
    """

    samples: int
    seed: bytes
    flops_threshold: float
    chip_flops_per_day: float
    period_days: float
    snapshot_rate_per_day: float
    replay_device: str = "cpu"
    replay_env: Mapping[str, str] = field(default_factory=dict)
    snapshots: SnapshotPolicy = SNAPSHOTS_AS_DESIGNED
    sharded: Sharded = "all"
    chunks: int = CHUNKS
    peak_flops: float | None = None
    segments: SegmentPolicy = SEGMENTS_AS_DESIGNED
    transcripts: TranscriptPolicy = TRANSCRIPTS_AS_DESIGNED
    draw: DrawPolicy = field(default_factory=DrawPolicy)
    regeneration_s: float = REGENERATION_SECONDS

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A field is out of range.
        """
        for name in (
            "regeneration_s", "flops_threshold", "chip_flops_per_day", "period_days", "snapshot_rate_per_day",
        ):  # fmt: skip
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name} must be a positive finite number, not {value!r}")
        if self.peak_flops is not None and not (math.isfinite(self.peak_flops) and self.peak_flops > 0):
            raise UsageError(f"peak_flops must be a positive finite number or nothing, not {self.peak_flops!r}")
        if not _DEVICE.fullmatch(self.replay_device):
            raise UsageError("replay_device must be cpu, cuda or cuda:N")
        if self.sharded not in get_args(Sharded):
            raise UsageError(f"sharded must be {' or '.join(get_args(Sharded))}, not {self.sharded[:50]!r}")
        if not 1 <= self.chunks <= MAX_OPENINGS:
            raise UsageError(f"chunks must be between 1 and {MAX_OPENINGS}, not {self.chunks}")
        for name, value in self.replay_env.items():
            if name not in REPLAY_VARIABLES:
                raise UsageError(f"replay_env may set only {', '.join(sorted(REPLAY_VARIABLES))}")
            if len(value) > 200 or not value.isprintable():
                raise UsageError(f"the value of {name} in replay_env must be at most 200 printable characters")

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data with every field, the seed in hex."""
        return {
            **asdict(self),
            "seed": self.seed.hex(),
            "replay_env": dict(sorted(self.replay_env.items())),
            "draw": self.draw.to_json(),
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Plan:
        """Inverse of `to_json`; a field that an older version did not have gets its default.

        Raises:
            UsageError: A field is unknown or out of range.
        """
        kinds: dict[str, Callable[[Any], Any]] = {
            "seed": bytes.fromhex,
            "snapshots": lambda fields: SnapshotPolicy(**fields),
            "segments": lambda fields: SegmentPolicy(**{"recognise": 0, **fields}),
            "transcripts": lambda fields: TranscriptPolicy(**fields),
            "draw": DrawPolicy.from_json,
        }
        try:
            return Plan(**{name: kinds.get(name, _same)(value) for name, value in raw.items()})
        except (TypeError, ValueError) as error:
            raise UsageError(f"the plan was made by another version ({error}); start the inspection again") from None


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One log entry as the chip sent it.

    Attributes:
        data: Its bytes.
        digest: Digest of the entry's bytes, to which the next entry's `previous` refers.
        verified: The verified token, or why it does not verify.
    """

    data: bytes
    digest: bytes
    verified: Verified | WeighbridgeError


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """How far the witness holds a chip's log.

    Attributes:
        size: Entries that it holds; 0 before the first contact.
        root: Root of the tree over them, 32 bytes.
        checkpoint: The checkpoint over them, as a note; empty before the first contact.
        chip_ms: The chip's time at the last contact, in milliseconds since 1970.
        read_ms: The Verifier's time at the last contact, likewise.
    """

    size: int = 0
    root: bytes = EMPTY_ROOT
    checkpoint: bytes = b""
    chip_ms: int = 0
    read_ms: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchor:
    """A head of a chip, and when the Verifier had it signed: between the two times on its own clock.

    Attributes:
        data: The head token.
        token: What it says; verified.
        asked_ms: When the nonce was given, in milliseconds since 1970.
        read_ms: When the head was there, likewise.
    """

    data: bytes
    token: Token
    asked_ms: int
    read_ms: int


@dataclass(frozen=True, slots=True)
class Contact:
    """When the witness first held entries of a chip's log.

    Attributes:
        size: It held those below this index from then on.
        time_s: Seconds since 1970 on its clock, rounded down, as its cosignature says.
        chip_ms: The chip's time when it signed its head, in milliseconds since 1970.
    """

    size: int
    time_s: int
    chip_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A chip's checkpoint whose signatures verify.

    Attributes:
        head: The verified head token that binds it to the chip.
        token: The token's bytes.
        checkpoint: What it says.
        note: The signed note.
    """

    head: Verified
    token: bytes
    checkpoint: Checkpoint
    note: Note


@dataclass(frozen=True, kw_only=True, slots=True)
class CustodyFacts:
    """What the registry knows of a drawn chip.

    Attributes:
        chip: The chip.
        contradictions: What parties said of it that cannot be.
    """

    chip: Chip
    contradictions: tuple[Contradiction, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFacts:
    """A chip's log as it was read.

    Attributes:
        chip: What the registry knows, including what was witnessed before.
        nonce: The Verifier's fresh nonce.
        head: The verified head token over the nonce, or why there is none.
        head_token: The bytes of that token; empty if there is none.
        entries: All entries, in the order in which the chip sent them.
        error: Why the log could not be read to its end, if it could not.
        held: What the witness held before.
        report: The log's checkpoint, if it is the chip's.
        proof: The chip's proof that it continues what was held.
        history: Why the checkpoint is none of the chip's, or does not continue what was held; None if it does.
        refused: Why reports of the chip were refused since the last contact: the reason and the checkpoint of each.
        asked_ms: The Verifier's time when it turned to the chip, in milliseconds since 1970.
        read_ms: The Verifier's time when the head was there, in milliseconds since 1970; 0 if there was none.
        anchors: Heads of each boot that were witnessed before, in order: the first, the newest, and those at which its
            clock became slow or was no longer.
        contacts: When the witness first held its entries, before this inspection, in the order of the log.
        hidden: As the chip signed them, the tokens whose hidden fields a Prover opened, by their places; `entries` have
            the fields.
        unopened: Why a token whose fields are hidden was not opened, by its place; empty where none could be.
        agreed: Digest of the IDevID certificate that both parties agreed on before a sealed inspection; empty where
            there was no agreement about it.
    """

    chip: Chip
    nonce: bytes
    head: Verified | WeighbridgeError
    head_token: bytes = b""
    entries: list[Entry] = field(default_factory=list)
    error: WeighbridgeError | None = None
    held: Held = field(default_factory=Held)
    report: Report | None = None
    proof: list[bytes] = field(default_factory=list)
    history: WeighbridgeError | None = None
    refused: list[tuple[str, bytes]] = field(default_factory=list)
    asked_ms: int = 0
    read_ms: int = 0
    anchors: list[Anchor] = field(default_factory=list)
    contacts: list[Contact] = field(default_factory=list)
    hidden: dict[int, Token] = field(default_factory=dict)
    unopened: dict[int, WeighbridgeError] = field(default_factory=dict)
    agreed: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The Prover's claim where a snapshot came from.

    Attributes:
        transcript_id: Hex BLAKE3 digest of the transcript's manifest.
        step: Step of the position.
        op: Operations of that step that were complete.
        ranks: If it is a rank's transcript of a job, those of all ranks, by rank.
    """

    transcript_id: str
    step: int
    op: int
    ranks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What a chip says its snapshot's root is made of.

    Attributes:
        salt: The 32-byte salt of the boot.
        leaves: (bytes, keyed digest) of every live storage.
        weights: The same of the region that the workload declared as its weights.
    """

    salt: bytes
    leaves: list[Leaf]
    weights: list[Leaf] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class TranscriptFacts:
    """A transcript that explains snapshots.

    Attributes:
        id: Hex digest of its manifest, as the Prover named it.
        opened: The verified transcript, or why it cannot be used.
    """

    id: str
    opened: OpenedTranscript | WeighbridgeError


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """Which part of a job on several ranks a snapshot's transcript is.

    Attributes:
        coordinate: The job, and the rank, as the transcript's draft says.
        job: Directory with the transcripts of all ranks, or why there is none.
    """

    coordinate: MeshCoordinate
    job: Path | WeighbridgeError


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One rank of a job up to a snapshot's position, to be replayed with the results of its collectives as given.

    Attributes:
        steps: (first, last + 1).
        results: The file of results that the Prover sent.
        chunks: How many chunks these have.
        drawn: How many different ones were drawn, opened at every rank that they come from, and combined again.
        findings: What is wrong with them.
    """

    steps: tuple[int, int]
    results: Path
    chunks: int
    drawn: int
    findings: list[Finding]

    @property
    def found_share(self) -> float | None:
        """The least share of false chunks that is found with a probability of 95 %; None if there are no chunks."""
        if self.drawn == self.chunks:
            return 1 / self.chunks if self.chunks else None
        return float(1 - 0.05 ** (1 / self.drawn))


Status = Literal["explained", "explained given collectives", "mismatch", "unexplained", "unverified"]
"""`explained`: a matching replay reproduced the memory. `explained given collectives`: that of one rank alone did, with
the results of its collectives as the Prover gave them, and chunks of these were checked. `mismatch`: replay or memory
contradicts the transcript. `unexplained`: no transcript claims it. `unverified`: it could not be decided; its chip
does not count as verified."""


EXPLAINED: frozenset[Status] = frozenset({"explained", "explained given collectives"})
"""Statuses of snapshots that could be verified."""
CONTRADICTED: frozenset[Status] = frozenset({"mismatch", "unexplained"})
"""Statuses of snapshots that show a violation."""

MATCHES = frozenset({"match", GIVEN})
"""Verdicts of replays that found nothing wrong. Only the first is unconditional."""


@dataclass(kw_only=True, slots=True)
class SnapshotFacts:
    """One snapshot and everything that was found out about it.

    Attributes:
        chip: The chip that took it.
        index: Its index in the chip's log.
        verified: The verified token.
        drafts: (log index, digest) of every `manifest-draft` event that the chip logged before it.
        work: What the chip has done since the workload was attached; None if earlier firmware did not say.
        confidential: Whether the boot entry says that the chip opens it to no Verifier.
        explanation: The Prover's claim; None if the Prover explains nothing; an error if it could not be asked.
        transcript: The transcript of the claim, once it was looked for.
        shard: If that transcript is one rank's of a job, which one's.
        cell: If that rank is replayed alone: what is needed for it, or why it is not there.
        opening: The chip's opening, or why there is none.
        batches: (bytes, digest under the opening's salt) of the transcript's batches and undeclared tensors at the
            step and next to it.
        replayed: The replay up to the position, or why there is none.
        after: Off a safepoint, the replay to after the operation that was in progress, if it matched.
        seconds: Time that the replay took.
        status: The outcome.
    """

    chip: Chip
    index: int
    verified: Verified
    drafts: list[tuple[int, bytes]]
    work: Work | None = None
    confidential: bool = False
    explanation: Explanation | WeighbridgeError | None = None
    transcript: TranscriptFacts | None = None
    shard: Shard | None = None
    cell: Cell | WeighbridgeError | None = None
    opening: Opening | WeighbridgeError | None = None
    batches: list[Leaf] = field(default_factory=list)
    replayed: ReplayResult | WeighbridgeError | None = None
    after: ReplayResult | None = None
    seconds: float = 0.0
    status: Status = "unverified"

    @property
    def subject(self) -> str:
        """Names the snapshot in findings."""
        return f"chip {self.chip.ueid.hex()} entry {self.index}"


def by_chip(snapshots: Iterable[SnapshotFacts]) -> Mapping[bytes, list[SnapshotFacts]]:
    """Returns the snapshots of each chip that has some, by UEID, in the order in which they come."""
    found: dict[bytes, list[SnapshotFacts]] = {}
    for each in snapshots:
        found.setdefault(each.chip.ueid, []).append(each)
    return found
