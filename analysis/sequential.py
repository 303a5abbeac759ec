"""Inspections that stop early: as soon as a violation is seen, or as soon as the evidence suffices either way."""

from __future__ import annotations

import numpy as np

from analysis.domain import DetectionDomainError, FloatArray, Numbers, not_negative, plain, probability, together, whole
from analysis.hypergeometric import seen_probability


def expected_samples(
    *, samples: Numbers, chips: Numbers, involved: Numbers, shown: Numbers, withheld: int = 0
) -> FloatArray:
    """Returns how many chips are sampled on average if sampling stops at the first one that shows a violation.

    Without replacement, planned for `samples` chips. It is the sum over i < s of the probability to have seen nothing
    in i samples, which has the closed form (C + 1)/((n + 1) w) * P(seen in s of C + 1 chips with n + 1 involved).

    A Prover who withholds chips as they are drawn hides the first of those that show the violation. Then sampling stops
    at the next one, and the sum has such a term for each number of hidden chips: P(more than that many are seen).

    Args:
        samples: Different chips sampled if nothing is seen (s), whole, at most `chips`.
        chips: Number of chips (C), whole.
        involved: Involved chips (n), whole, at most `chips`; 0 gives `samples`.
        shown: Probability that a sampled involved chip shows the violation (w), 0 to 1; 0 gives `samples`.
        withheld: Chips that the Prover may withhold once they are drawn, whole.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    drawn, total, some, seen = together(
        whole("samples", samples, 0),
        whole("chips", chips, 1),
        whole("involved", involved, 0),
        np.asarray(shown, dtype=np.float64),
    )
    # Checks the arguments too; those of the next line exceed them by one and would accept more.
    seen_probability(population=total, marked=some, drawn=drawn, shown=seen)
    found = np.zeros(drawn.shape)
    for hidden in range(int(whole("withheld", withheld, 0)) + 1):
        found = found + seen_probability(
            population=total + 1, marked=some + 1, drawn=drawn, shown=seen, withheld=hidden
        )
    hopeless = (some == 0) | (seen == 0)
    return plain(np.where(hopeless, drawn, (total + 1) / ((some + 1) * np.where(hopeless, 1.0, seen)) * found))


def expected_samples_with_replacement(*, samples: Numbers, hit: Numbers) -> FloatArray:
    """Returns the same with replacement, as in equation 1: (1 - (1 - q)^s) / q.

    Args:
        samples: Chips sampled if nothing is seen (s), whole.
        hit: Probability that one sample shows the violation (q), between 0 and 1.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    drawn, chance = together(whole("samples", samples, 0), probability("hit", hit))
    return plain(-np.expm1(drawn * np.log1p(-chance)) / chance)


def sequential_test_lines(
    *, tolerable: Numbers, intolerable: Numbers, false_alarm: Numbers, missed: Numbers
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns Wald's sequential test between two violation rates as two parallel lines over the number sampled.

    For inspections that may err, so that one finding is no proof. After n samples with k findings: stop and pass when
    k <= slope n - pass_offset, stop and fail when k >= slope n + fail_offset, else go on (Wald 1945).

    Args:
        tolerable: Rate of findings that must pass (for instance of false alarms), between 0 and 1.
        intolerable: Rate of findings that must fail, between `tolerable` and 1.
        false_alarm: Probability of failing at the tolerable rate (alpha), between 0 and 1.
        missed: Probability of passing at the intolerable rate (beta), between 0 and 1; alpha + beta < 1.

    Returns:
        slope, pass_offset, fail_offset, each in the broadcast shape.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    low, high, alpha, beta = _rates(tolerable, intolerable, false_alarm, missed)
    per_finding = np.log(high / low) + np.log1p(-low) - np.log1p(-high)
    return (
        plain((np.log1p(-low) - np.log1p(-high)) / per_finding),
        plain((np.log1p(-alpha) - np.log(beta)) / per_finding),
        plain((np.log1p(-beta) - np.log(alpha)) / per_finding),
    )


def sequential_test_samples(
    *, tolerable: Numbers, intolerable: Numbers, false_alarm: Numbers, missed: Numbers
) -> tuple[FloatArray, FloatArray]:
    """Returns Wald's approximate mean number of samples at the tolerable and at the intolerable rate.

    Arguments and errors as `sequential_test_lines`.
    """
    low, high, alpha, beta = _rates(tolerable, intolerable, false_alarm, missed)
    failed, passed = np.log1p(-beta) - np.log(alpha), np.log(beta) - np.log1p(-alpha)
    up, down = np.log(high / low), np.log1p(-high) - np.log1p(-low)
    return (
        plain((alpha * failed + (1 - alpha) * passed) / (low * up + (1 - low) * down)),
        plain(((1 - beta) * failed + beta * passed) / (high * up + (1 - high) * down)),
    )


def _rates(tolerable: Numbers, intolerable: Numbers, false_alarm: Numbers, missed: Numbers) -> list[FloatArray]:
    low, high, alpha, beta = together(
        probability("tolerable", tolerable),
        probability("intolerable", intolerable),
        probability("false_alarm", false_alarm),
        probability("missed", missed),
    )
    if np.any(low >= high):
        raise DetectionDomainError("intolerable must be larger than tolerable, or nothing can be told apart")
    if np.any(alpha + beta >= 1):
        raise DetectionDomainError("false_alarm and missed must sum to less than 1; lower one of them")
    return [low, high, alpha, beta]


def sequential_verdict(
    *, found: Numbers, sampled: Numbers, tolerable: Numbers, intolerable: Numbers, false_alarm: Numbers, missed: Numbers
) -> FloatArray:
    """Returns 1 where the sequential test stops and fails, -1 where it stops and passes, 0 where it goes on.

    Args:
        found: Findings so far (k), whole.
        sampled: Samples so far (n), whole, at least `found`.
        tolerable: Rate of findings that must pass, between 0 and 1.
        intolerable: Rate of findings that must fail, between `tolerable` and 1.
        false_alarm: Probability of failing at the tolerable rate (alpha), between 0 and 1.
        missed: Probability of passing at the intolerable rate (beta), between 0 and 1.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    slope, pass_offset, fail_offset = sequential_test_lines(
        tolerable=tolerable, intolerable=intolerable, false_alarm=false_alarm, missed=missed
    )
    hits, drawn, excess = together(
        whole("found", found, 0), whole("sampled", sampled, 0), not_negative("slope", slope, "findings")
    )
    if np.any(hits > drawn):
        raise DetectionDomainError("found cannot exceed sampled")
    excess = hits - excess * drawn
    return plain(np.where(excess >= fail_offset, 1.0, np.where(excess <= -np.asarray(pass_offset), -1.0, 0.0)))
