"""What segments that several auditors replayed are worth: work that was done, and probabilities, which are two things.

*Work* is a count: which steps some honest auditor surely replayed. Of k auditors at least h are honest, and it is not
known which; a party that pays auditors after the draw picks the others. So what is covered is the least union over all
groups of h auditors (`least_union`). It is a share of the steps, and no probability of anything.

*Probabilities* are about a draw that the Prover did not know when it made the transcript: that m bad steps are among
those that h honest auditors replayed (`seen_by_independent_draws`, `seen_in_sample`). They hold for auditors whose
honesty does not depend on the draw. A Prover who pays auditors once it knows the draw has to pay `paid_off` of them.
How often an auditor misses false segments is bounded by `analysis.confidence.clopper_pearson`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from math import comb

import numpy as np

from analysis.domain import (
    DetectionDomainError,
    FloatArray,
    InfeasibleError,
    Numbers,
    plain,
    share,
    together,
    whole,
)

MOST_GROUPS = 1 << 17
"""Most groups of auditors that are tried, one after the other."""
_MOST_AUDITORS = 64


def least_union(taken: Sequence[Collection[int]], honest: int, sizes: Sequence[int] | None = None) -> int:
    """Returns how much any `honest` auditors replayed together, at least.

    Args:
        taken: The segments that each auditor replayed, by number.
        honest: How many auditors are honest, at least (h); it is not known which.
        sizes: Steps of each segment; by default each counts 1.

    Returns:
        The least size of a union over all groups of h auditors.

    Raises:
        DetectionDomainError: There are fewer auditors, a segment has no size, or there are too many groups to try.
    """
    if not 0 <= honest <= len(taken):
        raise InfeasibleError(f"{honest} of {len(taken)} auditors cannot be honest")
    if comb(len(taken), honest) > MOST_GROUPS or len(taken) > _MOST_AUDITORS:
        raise DetectionDomainError(f"more than {MOST_GROUPS} groups of {honest} of {len(taken)} auditors")
    holders: dict[int, int] = {}  # the auditors of a segment, one bit each
    for auditor, segments in enumerate(taken):
        for segment in set(segments):
            holders[segment] = holders.get(segment, 0) | 1 << auditor
    if holders and (min(holders) < 0 or (sizes is not None and max(holders) >= len(sizes))):
        raise DetectionDomainError("a segment that an auditor took has no size")
    steps: dict[int, int] = {}  # segments with the same auditors are covered together
    for segment, held in holders.items():
        steps[held] = steps.get(held, 0) + (1 if sizes is None else sizes[segment])
    masks = np.fromiter(steps, dtype=np.uint64)
    weights = np.fromiter(steps.values(), dtype=np.int64)
    groups = (sum(1 << auditor for auditor in group) for group in combinations(range(len(taken)), honest))
    return min(int(weights[(masks & np.uint64(group)) != 0].sum()) for group in groups)


def seen_by_independent_draws(*, taken: Numbers, honest: Numbers) -> FloatArray:
    """Returns the probability that at least one of h honest auditors replays a given segment: 1 - (1 - c)^h.

    Each auditor draws its segments for itself, so that a given one is among them with probability c.

    Args:
        taken: Share of the segments that each auditor draws (c), 0 to 1.
        honest: Honest auditors (h), whole.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    portion, count = together(share("taken", taken), whole("honest", honest, 0))
    with np.errstate(divide="ignore", invalid="ignore"):  # all segments; no auditors
        return plain(np.where(count == 0, 0.0, -np.expm1(count * np.log1p(-portion))))


def seen_in_sample(*, segments: int, bad: int, replayed: int) -> float:
    """Returns the probability that at least one of m bad segments is among d that were drawn at random of S.

    Args:
        segments: All segments (S).
        bad: Segments that do not match (m).
        replayed: Different segments that honest parties replayed, drawn at random (d).

    Raises:
        DetectionDomainError: An argument is out of range, or more are bad or replayed than there are.
    """
    counts = {"segments": segments, "bad": bad, "replayed": replayed}
    total, some, drawn = (int(whole(name, value, 0)) for name, value in counts.items())
    if some > total or drawn > total:
        raise InfeasibleError(f"{max(some, drawn)} of {total} segments cannot be bad or replayed")
    return 1 - comb(total - some, drawn) / comb(total, drawn)


def paid_off(holders: Sequence[Collection[int]]) -> int:
    """Returns how many auditors a Prover has to pay, once it knows the draw, so that none reports its bad segments.

    Args:
        holders: For each bad segment, the auditors that replay it.
    """
    return len({auditor for each in holders for auditor in each})
