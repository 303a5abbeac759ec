"""What verification costs: replay of random segments beside proofs, for training runs of any size.

Everything is arithmetic on figures that a reader can trace: published ones (`catalog.load_systems`), measured ones
(`measured`), and the sizes of a run, which `compute_optimal` makes up for a given number of FLOPs. What is extrapolated
says so: log sizes of runs that were not recorded (`Counts`), and proving times that are taken as linear in
the FLOPs proved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from analysis.costs import SECONDS_PER_DAY
from analysis.domain import (
    DetectionDomainError,
    FloatArray,
    Numbers,
    not_negative,
    numbers,
    plain,
    positive,
    refuse,
    together,
    whole,
)

FLOPS_PER_PARAMETER_AND_TOKEN = 6.0  # forward 2, backward 4: Kaplan et al. 2020 (arXiv 2001.08361), section 2.1
TOKENS_PER_PARAMETER = 20.0  # Hoffmann et al. 2022 (arXiv 2203.15556), table 3, rounded
WEIGHTS_PER_LAYER = 12.0  # times the width squared: 4 for attention, 8 for a feed-forward part of four times the width


@dataclass(frozen=True)
class Shape:
    """A language model and one of its batches: all that the number of rounded elements depends on.

    Attributes:
        parameters: Number of weights (N).
        layers: Number of layers (L).
        width: Width of the residual stream (d).
        heads: Attention heads of a layer (h).
        context: Tokens that attend to each other (T).
        vocabulary: Size of the vocabulary (V).
        tokens: Tokens of a step (B).
    """

    parameters: float
    layers: float
    width: float
    heads: float
    context: float
    vocabulary: float
    tokens: float

    def terms(self, growth: float = 0.0) -> FloatArray:
        """Returns N, V d, B L d (d/128)^g, B L h T, B V: what a step's counts are made of, shape (5,)."""
        per_token = (
            self.layers * self.width * (self.width / 128) ** growth,
            self.layers * self.heads * self.context,
            self.vocabulary,
        )
        return np.array([self.parameters, self.vocabulary * self.width, *(self.tokens * each for each in per_token)])


@dataclass(frozen=True)
class Training:
    """A training run: the shape of its step, and how many tokens it sees (D); 6 N D FLOPs."""

    shape: Shape
    tokens: float

    @property
    def steps(self) -> float:
        """Number of steps, D/B."""
        return self.tokens / self.shape.tokens

    @property
    def flops(self) -> float:
        """FLOPs, 6 N D."""
        return FLOPS_PER_PARAMETER_AND_TOKEN * self.shape.parameters * self.tokens


def compute_optimal(
    flops: float,
    *,
    tokens_per_parameter: float = TOKENS_PER_PARAMETER,
    aspect: float = 128.0,
    head_width: float = 128.0,
    context: float = 8192.0,
    vocabulary: float = 128_000.0,
    batch_tokens: float = 8e6,
) -> Training:
    """Returns a dense transformer of the size that the Chinchilla rule gives for so many FLOPs.

    6 N D = H with D = 20 N gives N = sqrt(H/120); N = 12 L d^2 with d = 128 L gives d = (128 N/12)^(1/3). Embeddings
    are left out of N, and numbers are not rounded to what hardware likes.

    Args:
        flops: Size of the run in FLOPs (H).
        tokens_per_parameter: D/N.
        aspect: d/L; Llama 3.1-405B has 130.
        head_width: d/h.
        context: Tokens that attend to each other (T).
        vocabulary: V.
        batch_tokens: Tokens of a step (B).

    Raises:
        DetectionDomainError: An argument is not positive and finite.
    """
    size = float(positive("flops", flops, "FLOPs"))
    ratio = float(positive("tokens_per_parameter", tokens_per_parameter, "tokens a parameter"))
    slender = float(positive("aspect", aspect, "layers' width"))
    each = float(positive("head_width", head_width, "elements"))
    parameters = np.sqrt(size / (FLOPS_PER_PARAMETER_AND_TOKEN * ratio))
    width = np.cbrt(slender * parameters / WEIGHTS_PER_LAYER)
    shape = Shape(
        parameters=float(parameters),
        layers=float(width / slender),
        width=float(width),
        heads=float(width / each),
        context=float(positive("context", context, "tokens")),
        vocabulary=float(positive("vocabulary", vocabulary, "tokens")),
        tokens=float(positive("batch_tokens", batch_tokens, "tokens")),
    )
    return Training(shape, float(ratio * parameters))


@dataclass(frozen=True)
class Counts:
    """Something counted for each step (rounded elements, bytes of log) as a sum of terms, fitted to what was recorded.

    Attributes:
        factors: What multiplies each of `Shape.terms`.
        growth: How what is counted for each element of a layer grows with the width: as its g-th power.
        worst: Largest relative difference between the sum and what was recorded.
    """

    factors: tuple[float, ...]
    growth: float
    worst: float

    def of(self, shape: Shape) -> float:
        """Returns the count of one step."""
        return float(shape.terms(self.growth) @ np.array(self.factors))


def fit_counts(shapes: Sequence[Shape], counted: Numbers, *, growths: Sequence[float] = (0.0,)) -> Counts:
    """Returns factors that are not negative and come nearest to what was recorded, relatively, in least squares.

    Args:
        shapes: What was recorded, at least as many as there are terms.
        counted: What was counted in a step of each; shape (number of shapes,).
        growths: Powers of the width to try; the best is taken.

    Raises:
        DetectionDomainError: There are too few shapes or powers, or the counts are not one for each shape.
    """
    values = positive("counted", counted, "anything")
    if values.shape != (len(shapes),) or len(shapes) < 5 or not growths:
        raise DetectionDomainError(
            f"{len(shapes)} shapes, {values.size} counts and {len(growths)} powers: give at least 5 shapes, a count "
            "for each, and a power"
        )
    best: tuple[float, Counts] | None = None
    for growth in growths:
        terms = np.array([shape.terms(growth) for shape in shapes]) / values[:, None]
        scale = terms.max(axis=0)
        factors, residual = nnls(terms / scale, np.ones(len(shapes)))
        found = tuple(float(factor) for factor in factors / scale)
        if best is None or residual < best[0]:
            best = residual, Counts(found, float(growth), float(np.abs(terms @ np.array(found) - 1).max()))
    assert best is not None
    return best[1]


@dataclass(frozen=True)
class RecordSize:
    """Bytes of the record of a step, as a line over the number of layers: a record has a checksum for each result.

    Attributes:
        constant: Bytes of a step without layers.
        per_layer: Bytes that a layer adds.
        worst: Largest relative difference between the line and what was recorded.
    """

    constant: float
    per_layer: float
    worst: float

    def of(self, shape: Shape) -> float:
        """Returns the bytes of one step's record on one chip that computes all layers."""
        return self.constant + self.per_layer * shape.layers


def fit_records(shapes: Sequence[Shape], counted: Numbers) -> RecordSize:
    """Returns the line over the layers that comes nearest to what was recorded, relatively, in least squares.

    Args:
        shapes: What was recorded, with at least two numbers of layers.
        counted: Bytes of a step's record of each; shape (number of shapes,).

    Raises:
        DetectionDomainError: All shapes have as many layers, or the sizes are not one for each shape.
    """
    values = positive("counted", counted, "bytes")
    if values.shape != (len(shapes),) or len({shape.layers for shape in shapes}) < 2:
        raise DetectionDomainError(
            f"{len(shapes)} shapes and {values.size} sizes: give a size for each shape, and two numbers of layers"
        )
    terms = np.array([[1.0, shape.layers] for shape in shapes]) / values[:, None]
    (constant, per_layer), _ = nnls(terms, np.ones(len(shapes)))
    worst = np.abs(terms @ np.array([constant, per_layer]) - 1).max()
    return RecordSize(float(constant), float(per_layer), float(worst))


def transcript_bytes(
    *, log_bytes: Numbers, parameters: Numbers, bytes_per_parameter: Numbers, checkpoints: Numbers, tokens: Numbers,
    bytes_per_token: Numbers = 8.0, record_bytes: Numbers = 0.0,
) -> FloatArray:  # fmt: skip
    """Returns what a Prover keeps of a run until inspections allow it to be deleted, in bytes.

    Rounding logs, checkpoints, batches and records. Tapes are left out: a run has a few, whatever its length.

    Args:
        log_bytes: Rounding logs of all steps.
        parameters: N.
        bytes_per_parameter: State of each: 12 for float32 weights and two moments.
        checkpoints: How many are kept.
        tokens: Tokens that the run sees (D).
        bytes_per_token: Bytes that a token takes in a batch.
        record_bytes: Step records of all steps on all chips.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    logs, size, each, kept, seen, token, records = together(
        not_negative("log_bytes", log_bytes, "bytes"),
        positive("parameters", parameters, "parameters"),
        positive("bytes_per_parameter", bytes_per_parameter, "bytes"),
        not_negative("checkpoints", checkpoints, "checkpoints"),
        not_negative("tokens", tokens, "tokens"),
        not_negative("bytes_per_token", bytes_per_token, "bytes"),
        not_negative("record_bytes", record_bytes, "bytes"),
    )
    return plain(logs + size * each * kept + seen * token + records)


def replayed_fraction(
    *, samples: Numbers, chips: Numbers, job_chips: Numbers, snapshots_per_chip: Numbers, segment_steps: Numbers,
    steps: Numbers, ranks_replayed: Numbers,
) -> FloatArray:  # fmt: skip
    """Returns the fraction of a job's training that inspecting random chips recomputes, on average; at most 1.

    Of s chips drawn from C, s n/C belong to a job of n chips. Each of their snapshots is replayed from the checkpoint
    before it, (k + 1)/2 steps of S on average, on all ranks of the job or on one. Segments that are replayed for two
    snapshots are counted twice, so this is an upper limit.

    Args:
        samples: Chips sampled while the job runs (s).
        chips: Chips that are sampled from (C), whole.
        job_chips: Chips of the job (n), whole, at most C.
        snapshots_per_chip: Snapshots that are replayed for each sampled chip.
        segment_steps: Steps between two checkpoints (k).
        steps: Steps of the job (S), at least k.
        ranks_replayed: Ranks that each replay executes: n for an unconditional match, 1 given the collectives.

    Raises:
        DetectionDomainError: An argument is out of range, or they do not fit together.
    """
    drawn, total, job, held, segment, length, ranks = together(
        not_negative("samples", samples, "chips"),
        whole("chips", chips, 1),
        whole("job_chips", job_chips, 1),
        not_negative("snapshots_per_chip", snapshots_per_chip, "snapshots"),
        positive("segment_steps", segment_steps, "steps"),
        positive("steps", steps, "steps"),
        whole("ranks_replayed", ranks_replayed, 1),
    )
    refuse(job > total, job, lambda v: f"job_chips = {float(v):.0f}: a job has no more chips than there are")
    refuse(ranks > job, ranks, lambda v: f"ranks_replayed = {float(v):.0f}: a job has no more ranks than chips")
    refuse(segment > length, segment, lambda v: f"segment_steps = {float(v):g}: a segment is no longer than the job")
    fraction = drawn * job / total * held * (segment + 1) / 2 / length * ranks / job
    return plain(np.minimum(1.0, fraction))


def proving_seconds(*, flops: Numbers, proved_flops: Numbers, prover_seconds: Numbers) -> FloatArray:
    """Returns H t/h: seconds to prove a run, if a prover that takes t seconds for h FLOPs needs H/h times as long.

    Args:
        flops: Size of the run in FLOPs (H).
        proved_flops: FLOPs of what was measured (h).
        prover_seconds: Seconds that it took on the published machine (t).

    Raises:
        DetectionDomainError: An argument is not positive and finite.
    """
    size, work, time = together(
        positive("flops", flops, "FLOPs"),
        positive("proved_flops", proved_flops, "FLOPs"),
        positive("prover_seconds", prover_seconds, "seconds"),
    )
    return plain(size / work * time)


def machines_to_keep_up(*, seconds: Numbers, run_days: Numbers) -> FloatArray:
    """Returns how many machines do so many seconds of work within the run, rounded up.

    Args:
        seconds: Seconds of work of one machine.
        run_days: Length of the run in days (T).

    Raises:
        DetectionDomainError: An argument is not positive and finite.
    """
    work, days = together(positive("seconds", seconds, "seconds"), positive("run_days", run_days, "days"))
    return plain(np.ceil(work / (days * SECONDS_PER_DAY) * (1 - 4 * np.finfo(float).eps)))


def dispute_rounds(*, steps: Numbers) -> FloatArray:
    """Returns ceil(log2 S): questions that find the first step in which two parties differ.

    Args:
        steps: Steps of the run (S), at least 1.

    Raises:
        DetectionDomainError: There are fewer than 1.
    """
    length = numbers("steps", steps)
    refuse(~((length >= 1) & np.isfinite(length)), length, lambda v: f"steps must be finite and at least 1, not {v}")
    return plain(np.ceil(np.log2(length)))
