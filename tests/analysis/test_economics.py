"""What verification costs: each piece of arithmetic by hand, fits that recover what made the counts, domain errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.domain import DetectionDomainError
from analysis.economics import (
    Shape,
    compute_optimal,
    dispute_rounds,
    fit_counts,
    fit_records,
    machines_to_keep_up,
    proving_seconds,
    replayed_fraction,
    transcript_bytes,
)

REPLAY = {
    "samples": 10, "chips": 1000, "job_chips": 100, "snapshots_per_chip": 3, "segment_steps": 99, "steps": 10_000,
    "ranks_replayed": 100,
}  # fmt: skip


def _shapes() -> list[Shape]:
    return [
        Shape(12.0 * layers * width**2, layers, width, heads, context, vocabulary, tokens)
        for layers, width, heads, context, vocabulary, tokens in (
            (2, 128, 4, 64, 256, 256), (1, 128, 4, 64, 256, 256), (2, 64, 4, 64, 256, 256), (2, 512, 4, 64, 256, 64),
            (2, 128, 8, 64, 256, 256), (2, 128, 4, 256, 256, 256), (2, 128, 4, 64, 4096, 256),
            (1, 2048, 4, 64, 256, 64),
        )
    ]  # fmt: skip


@given(flops=st.floats(1e18, 1e30))
def test_a_compute_optimal_run_has_the_flops_asked_for(flops: float) -> None:
    run = compute_optimal(flops)
    assert run.flops == pytest.approx(flops)
    assert run.tokens == pytest.approx(20 * run.shape.parameters)
    assert 12 * run.shape.layers * run.shape.width**2 == pytest.approx(run.shape.parameters)
    assert run.steps * run.shape.tokens == pytest.approx(run.tokens)


def test_the_rule_gives_roughly_the_shape_of_a_published_model() -> None:
    """Llama 3.1-405B: 3.8e25 FLOPs, 15.6e12 tokens, 126 layers, width 16384 (arXiv 2407.21783, table 3)."""
    run = compute_optimal(3.8e25, tokens_per_parameter=15.6e12 / 4.05e11)
    assert run.shape.parameters == pytest.approx(4.05e11, rel=0.02)
    assert run.shape.width == pytest.approx(16384, rel=0.02)
    assert run.shape.layers == pytest.approx(126, rel=0.03)


@settings(deadline=None, max_examples=30)
@given(
    factors=st.tuples(*[st.floats(1e-3, 100)] * 5),
    growth=st.sampled_from([0.0, 0.5, 1.0, 1.5]),
)
def test_a_fit_recovers_what_made_the_counts(factors: tuple[float, ...], growth: float) -> None:
    shapes = _shapes()
    counted = [float(shape.terms(growth) @ np.array(factors)) for shape in shapes]
    fit = fit_counts(shapes, counted, growths=(0.0, 0.5, 1.0, 1.5))
    assert fit.worst < 1e-6
    for shape, count in zip(shapes, counted, strict=True):
        assert fit.of(shape) == pytest.approx(count, rel=1e-6)


def test_a_fit_says_how_far_off_it_is() -> None:
    shapes = _shapes()
    counted = [float(shape.terms().sum()) for shape in shapes]
    counted[0] *= 1.5
    fit = fit_counts(shapes, counted)
    assert fit.worst > 0.05
    assert min(fit.factors) >= 0


@pytest.mark.parametrize(("count", "growths"), [(4, (0.0,)), (7, ()), (0, (0.0,))])
def test_too_little_to_fit(count: int, growths: tuple[float, ...]) -> None:
    shapes = _shapes()[:count]
    with pytest.raises(DetectionDomainError, match="at least 5 shapes"):
        fit_counts(shapes, np.ones(count), growths=growths)


def test_counts_that_are_not_one_for_each_shape() -> None:
    with pytest.raises(DetectionDomainError, match="a count"):
        fit_counts(_shapes(), np.ones(3))
    with pytest.raises(DetectionDomainError, match="positive"):
        fit_counts(_shapes(), np.zeros(8))


@given(st.floats(0, 1e6), st.floats(1, 1e6))
def test_sizes_of_records_on_a_line_are_that_line(constant: float, per_layer: float) -> None:
    fit = fit_records(_shapes(), [constant + per_layer * shape.layers for shape in _shapes()])
    assert fit.worst < 1e-6
    assert fit.of(compute_optimal(1e25).shape) == pytest.approx(
        constant + per_layer * compute_optimal(1e25).shape.layers, rel=1e-5, abs=1e-3
    )


def test_a_line_of_records_says_how_far_off_it_is_and_needs_two_numbers_of_layers() -> None:
    shapes = _shapes()
    assert fit_records(shapes, [1000.0, *[500.0 * shape.layers for shape in shapes[1:]]]).worst > 0
    same = [shape for shape in shapes if shape.layers == 2]
    for chosen, sizes in ((same, np.ones(len(same))), (shapes, np.ones(3))):
        with pytest.raises(DetectionDomainError, match="two numbers of layers"):
            fit_records(chosen, sizes)


def test_bytes_of_a_transcript_add_up() -> None:
    parts = {"log_bytes": 7.0, "parameters": 10.0, "bytes_per_parameter": 12.0, "checkpoints": 3.0, "tokens": 5.0}
    assert transcript_bytes(**parts) == 7 + 10 * 12 * 3 + 5 * 8
    assert transcript_bytes(**parts, record_bytes=11) == 7 + 10 * 12 * 3 + 5 * 8 + 11
    many = transcript_bytes(**parts | {"checkpoints": np.array([0.0, 3.0])})
    assert many.tolist() == [47.0, 407.0]


def test_the_replayed_fraction_by_hand_and_by_simulation() -> None:
    """10 of 1000 chips: one of the job's; its 3 snapshots take 50 of 10,000 steps each, on all ranks."""
    assert replayed_fraction(**REPLAY) == pytest.approx(3 * 50 / 10_000)
    assert replayed_fraction(**REPLAY | {"ranks_replayed": 1}) == pytest.approx(3 * 50 / 10_000 / 100)
    random = np.random.default_rng(1)
    drawn = random.hypergeometric(100, 900, 10, 20_000)
    steps = [int(random.integers(1, 100, 3 * chips).sum()) for chips in drawn]  # steps to a place in a segment of 99
    simulated = np.array(steps) / 10_000
    error = 4 * simulated.std() / np.sqrt(len(simulated))
    assert abs(simulated.mean() - replayed_fraction(**REPLAY)) < error


def test_no_more_than_everything_is_replayed() -> None:
    assert replayed_fraction(**REPLAY | {"samples": 1000, "snapshots_per_chip": 1e6}) == 1.0


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"job_chips": 2000}, "no more chips"),
        ({"ranks_replayed": 101}, "no more ranks"),
        ({"segment_steps": 20_000}, "no longer than the job"),
        ({"steps": 0}, "steps"),
        ({"samples": float("nan")}, "samples"),
        ({"chips": 10.5}, "whole number"),
    ],
)
def test_replays_that_cannot_be(changed: dict[str, float], says: str) -> None:
    with pytest.raises(DetectionDomainError, match=says):
        replayed_fraction(**REPLAY | changed)


def test_proving_is_linear_and_machines_are_whole() -> None:
    assert proving_seconds(flops=1e25, proved_flops=1e10, prover_seconds=2) == pytest.approx(2e15)
    assert machines_to_keep_up(seconds=[86400.0, 86401.0], run_days=1).tolist() == [1, 2]
    with pytest.raises(DetectionDomainError, match="proved_flops"):
        proving_seconds(flops=1, proved_flops=0, prover_seconds=1)
    with pytest.raises(DetectionDomainError, match="run_days"):
        machines_to_keep_up(seconds=1, run_days=-1)


@given(steps=st.integers(1, 2**40))
def test_a_dispute_takes_as_many_questions_as_a_bisection(steps: int) -> None:
    rounds = int(dispute_rounds(steps=steps))
    assert 2**rounds >= steps
    assert rounds == 0 or 2 ** (rounds - 1) < steps


def test_disputes_over_nothing() -> None:
    with pytest.raises(DetectionDomainError, match="at least 1"):
        dispute_rounds(steps=0.5)
