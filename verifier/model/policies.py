"""The policies of a plan: how chips are drawn, what of their snapshots may differ, what is replayed, what counts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from verifier.model.strata import Allocation, Attribute, check_attributes
from weighbridge.core.errors import Severity, UsageError
from weighbridge.execution.sensitivity import check_count

MAX_SECONDS = 366 * 24 * 3600.0
_MAX_SPEEDS = 200
_MOST_SEGMENTS = 10_000
MOST_RECOGNISED = 1_000

Weight = Literal[Severity, "accepted"]
"""The severity of a finding, or that there is none."""

WEIGHTS = (*get_args(Severity), "accepted")


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawPolicy:
    """How chips are drawn.

    Attributes:
        by: Attributes that divide the population into strata; none, for one stratum.
        allocation: How samples are allocated to strata.
        speeds: FLOPs a day of chips of some types, by type, where they differ from the plan's.
        cutoff_s: Seconds from the commitment to the cut-off; None for a second, and as long as asking chips for their
            heads may take.
        margin_s: Seconds from the cut-off to the beacon's round, for logging the closing; None for two, and more for
            large populations.
    """

    by: tuple[Attribute, ...] = ()
    allocation: Allocation = "proportional"
    speeds: Mapping[str, float] = field(default_factory=dict)
    cutoff_s: float | None = None
    margin_s: float | None = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A field is out of range.
        """
        check_attributes(self.by)
        if self.allocation not in ("proportional", "optimal"):
            raise UsageError(f"samples are allocated proportional or optimal, not {self.allocation!r:.40}")
        if self.speeds and "type" not in self.by:
            raise UsageError("chip types have speeds of their own, so strata must be by type; add it")
        if len(self.speeds) > _MAX_SPEEDS:
            raise UsageError(f"at most {_MAX_SPEEDS} chip types can have speeds of their own")
        for name, speed in self.speeds.items():
            if not (math.isfinite(speed) and speed > 0) or len(name) > 200 or not name.isprintable():
                raise UsageError(f"the FLOPs a day of chip type {name!r:.80} must be a positive finite number")
        for seconds in (self.cutoff_s, self.margin_s):
            if seconds is not None and not 0 <= seconds <= MAX_SECONDS:
                raise UsageError("cut-off and margin are between 0 seconds and a year")

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data with every field; inverse of `from_json`."""
        speeds = {name: float(speed) for name, speed in sorted(self.speeds.items())}
        return {**asdict(self), "by": list(self.by), "speeds": speeds}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> DrawPolicy:
        """Reads what `to_json` wrote.

        Raises:
            UsageError: A field is out of range.
        """
        return DrawPolicy(**{**value, "by": tuple(value["by"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotPolicy:
    """The caps of the checks of snapshots and interrupts.

    Attributes:
        unexplained_share: Up to this share of all bytes, storages that do not match are a warning; above it a
            violation. A program may keep a tensor longer than its transcript knows. A model, its optimizer or their
            wrong contents are larger.
        unobserved_bytes: Bytes that a workload may hold where no snapshot can see them without this being stated: a
            Python process with PyTorch takes about half a GiB, and data sets lie there.
        unobserved_share: The same as a share of the bytes that were seen: free blocks of a GPU's allocator. What is
            beyond both is stated.
        temporaries: Off a safepoint, an operation in progress may hold so many times the bytes of its operands and
            results, in buffers that no tape knows.
        work_share: FLOPs that a chip may have done beside those of the transcript, as a share of these: evaluation
            and the like, which is not recorded. Between two snapshots it may be as much as the share of all up to the
            later one: an evaluation comes at once.
        unknown_s: Seconds of one run's time on a chip that code of unknown work may take, without what it can do at the
            chip's peak in them being asked about: a call that failed while a framework tried what there is.
        work_flops: FLOPs that a chip may have done beside those of the transcript whatever these are: what a framework
            computes for itself outside steps, such as the mesh of a job's ranks. An honest rank had done 124 of them at
            a snapshot before its first recorded one (`benchmarks.soak_honest`, seed 74).
        recording_flops: FLOPs that a Recorder may have taken for each result in 16 bits that the transcript computes:
            it calculates that result again with its bound. Honest ones took 12 to 46
            (`benchmarks.bench_recording_work`). For results in 32 bits it takes none that a chip sees.
        tails: Runs of one chip that a crash ended in a step with a snapshot, which cannot be replayed. More are a
            warning.
        restarts: Snapshots of one chip at a position that an earlier one of the same run had passed, as a crash and a
            resumption make them. More are a warning, if they are also more than `restarts_share` of its snapshots.
        restarts_share: See `restarts`.
        inconclusive: Differences of one Prover's runs that a bound too small for the replaying device would explain, so
            that what comes after them was not verified. More are a warning. Replays of honest runs under other
            instruction sets had none (docs/benchmarks.md, "What rounding logs bring in").
        setup_flops: FLOPs that a program may do before its first recorded step: to test the device, to make or load a
            model. A snapshot taken then that cannot be replayed is not evidence against the Prover, and verifies
            nothing.
        setup_kernels: Kernels that it may run before; see `setup_flops`.
        setup_busy_s: Seconds for which these may run, whatever they are said to compute.
        unexplained_flops: FLOPs of one chip, over its whole log, that no transcript has to explain; nor do fewer than
            the smallest run that the plan is about. More are a warning.
        unserved: Interrupts of one chip that its workload left without a snapshot, as every workload that is killed
            may. More are a violation, if they are also more than `unserved_share` of its interrupts.
        unserved_share: See `unserved`.
    """

    unexplained_share: float = 0.01
    unobserved_bytes: float = 4.0 * (1 << 30)
    unobserved_share: float = 1.0
    temporaries: float = 16.0
    work_share: float = 0.5
    unknown_s: float = 0.1
    work_flops: float = 1e6
    recording_flops: float = 64.0
    tails: int = 1
    restarts: int = 3
    restarts_share: float = 0.1
    inconclusive: int = 1
    setup_flops: float = 1e9
    setup_kernels: int = 100_000
    setup_busy_s: float = 60.0
    unexplained_flops: float = 1e12
    unserved: int = 2
    unserved_share: float = 0.1

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A field is negative or no number.
        """
        for each in fields(self):
            value = getattr(self, each.name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{each.name} of a snapshot policy must be a number of at least 0, not {value!r}")


SNAPSHOTS_AS_DESIGNED = SnapshotPolicy()


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentPolicy:
    """What an inspection replays whole. Without that, a replay goes from a checkpoint to a snapshot and no further.

    The defaults are those of every plan that does not say otherwise. A replay to a snapshot does not see that a history
    was glued together from two runs, or interpolated, at any other place; one segment at random gives each place a
    chance to be replayed, and the largest change is where glue stands out.

    Attributes:
        random: Segments of each transcript drawn at random.
        largest: Segments of each transcript in which the weights changed most.
        memorisation: Segments of each transcript, those in which the weights changed most, to test for memorisation.
        records: Records of each transcript's data set, drawn at random, that the Prover is asked to open.
        sensitivity: Steps of each segment that is replayed whole, drawn at random, to test for whether weights respond
            as they do in a training (`weighbridge.execution.sensitivity`).
        recognise: Steps of each segment that is replayed whole, drawn at random, whose training to recognise
            (`weighbridge.execution.recognition`); of as many different programs as there are.
        commitment: Hex digest of secret criteria (`verifier.model.segments.Secret.commitment`); empty if there are
        none.
    """

    random: int = 1
    largest: int = 1
    memorisation: int = 0
    records: int = 0
    sensitivity: int = 0
    recognise: int = 2
    commitment: str = ""

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A number is out of range, or the commitment is no digest.
        """
        check_count(self.sensitivity)
        for name in ("random", "largest", "memorisation", "records"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= _MOST_SEGMENTS:
                raise UsageError(
                    f"the number of {name} segments must be a whole number up to {_MOST_SEGMENTS}, not {value!r}"
                )
        if type(self.recognise) is not int or not 0 <= self.recognise <= MOST_RECOGNISED:
            raise UsageError(f"steps to recognise are a number from 0 to {MOST_RECOGNISED}, not {self.recognise!r:.40}")
        if not re.fullmatch(r"([0-9a-f]{64})?", self.commitment):
            raise UsageError("the commitment to secret criteria is a digest of 64 hexadecimal digits, or nothing")

    def __bool__(self) -> bool:
        """Whether anything is to be replayed whole."""
        return bool(self.random or self.largest or self.commitment)


SEGMENTS_AS_DESIGNED = SegmentPolicy()
NO_SEGMENTS = SegmentPolicy(random=0, largest=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class TranscriptPolicy:
    """What follows from what a transcript leaves open.

    Attributes:
        origin: A run began from content that no recorded program made, and names no parent
            (`transcript.origin.undeclared`).
        order: The Prover chose the order of the data, or the seed of W_0, freely (`data.order.chosen`).
    """

    origin: Weight = "warning"
    order: Weight = "accepted"

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A field is no weight.
        """
        for each in fields(self):
            if getattr(self, each.name) not in WEIGHTS:
                raise UsageError(f"{each.name} of a transcript policy is one of {', '.join(WEIGHTS)}")


TRANSCRIPTS_AS_DESIGNED = TranscriptPolicy()
