"""Several Provers who share one run: counted apart, each shows a small part of it; counted together, nothing is gained.

With C_i chips and s_i samples at Prover i, who does the share x_i of the run, each sample there hits with probability
x_i H/(a T C_i) w. The paper's answer is to treat all Provers as one with the global stockpile (section 3.2).
Provers lie along the last axis. How they would share best is `analysis.strata.worst_shares`.
"""

from __future__ import annotations

import numpy as np

from analysis.detection import detection_probability_eq1, snapshot_probability
from analysis.domain import FloatArray, Numbers, whole
from analysis.strata import strata_probability, worst_shares


def colluding_probability(
    *,
    samples: Numbers,
    shares: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    snapshot_rate_per_day: Numbers,
) -> FloatArray:
    """Returns the probability that at least one Prover's inspection shows the joint run.

    Args:
        samples: Chips sampled at each Prover after the run (s_i), 0 for Provers that are not inspected.
        shares: Share of the run's FLOPs that each does (x_i), summing to 1.
        flops_threshold: Size of the violation in FLOPs (H), all Provers together.
        chip_flops_per_day: FLOPs that one chip can do per day (a), a number or one for each Prover.
        chips: Chips of each Prover (C_i), whole.
        run_days: Length of the run in days (T).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).

    Returns:
        Probabilities in the broadcast shape without its last axis.

    Raises:
        DetectionDomainError: An argument is out of range, or a Prover cannot do its share.
    """
    return strata_probability(
        samples=samples,
        shares=shares,
        flops_threshold=flops_threshold,
        chip_flops_per_day=chip_flops_per_day,
        chips=chips,
        run_days=run_days,
        shown=snapshot_probability(snapshot_rate_per_day=snapshot_rate_per_day, days=run_days),
    )


def worst_collusion(
    *,
    samples: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    snapshot_rate_per_day: Numbers,
) -> FloatArray:
    """Returns the shares with which the joint run is least likely to be seen; arguments as `colluding_probability`.

    Raises:
        DetectionDomainError: An argument is out of range, or the run does not fit on all Provers' chips.
    """
    return worst_shares(
        samples=samples,
        flops_threshold=flops_threshold,
        chip_flops_per_day=chip_flops_per_day,
        chips=chips,
        run_days=run_days,
        shown=snapshot_probability(snapshot_rate_per_day=snapshot_rate_per_day, days=run_days),
    )


def global_probability(
    *,
    samples: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    snapshot_rate_per_day: Numbers,
) -> FloatArray:
    """Returns p where all Provers are sampled as one: equation 1 over the sum of their chips, however they share.

    Args:
        samples: Chips sampled over all Provers after the run (s), whole.
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Chips of each Prover (C_i), whole; they are summed over the last axis.
        run_days: Length of the run in days (T).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).

    Raises:
        DetectionDomainError: An argument is out of range, or the run does not fit on all chips.
    """
    return detection_probability_eq1(
        samples=samples,
        flops_threshold=flops_threshold,
        chip_flops_per_day=chip_flops_per_day,
        chips=np.sum(np.atleast_1d(whole("chips", chips, 0)), axis=-1),
        run_days=run_days,
        period_days=run_days,
        snapshot_rate_per_day=snapshot_rate_per_day,
    )
