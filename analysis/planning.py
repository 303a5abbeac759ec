"""The best inspection plan for a budget: snapshot rate f, samples s, and how they are spread over strata.

More snapshots make each sample worth more, but stall chips and fill disks; what they cost inspectors cannot have.
For a given f the samples go where `analysis.stratified_sampling.best_samples` says, which does best against the Prover
who knows the plan. Then f is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.costs import DAYS_PER_YEAR, SECONDS_PER_DAY
from analysis.domain import (
    DetectionDomainError,
    FloatArray,
    InfeasibleError,
    not_negative,
    plain,
    positive,
    share,
    whole,
)
from analysis.hypergeometric import seen_probability
from analysis.silence import GroupedDraw, least_probability_despite
from analysis.stratified_sampling import best_samples, strata_probability, whole_samples, worst_shares

_COARSE = 241  # rates tried over twelve decades, before the neighbourhood of the best is searched
_FINE = 41


@dataclass(frozen=True)
class CostModel:
    """What snapshots and their keeping cost. Money is in any one unit.

    Attributes:
        chip_day_cost: Worth of one chip for one day.
        stall_seconds: Seconds that a snapshot stops a chip.
        job_chips: Chips that stand still together while one of them takes a snapshot.
        snapshot_bytes: Bytes kept of one snapshot.
        byte_year_cost: Cost of keeping one byte for a year.
        kept_days: Days for which a snapshot is kept.
    """

    chip_day_cost: float
    stall_seconds: float
    job_chips: int
    snapshot_bytes: float
    byte_year_cost: float
    kept_days: float

    def __post_init__(self) -> None:
        not_negative("chip_day_cost", self.chip_day_cost, "units of cost")
        not_negative("stall_seconds", self.stall_seconds, "seconds")
        whole("job_chips", self.job_chips, 1)
        not_negative("snapshot_bytes", self.snapshot_bytes, "bytes")
        not_negative("byte_year_cost", self.byte_year_cost, "units of cost")
        positive("kept_days", self.kept_days, "days")

    def stall_cost(self, chips: float, snapshot_rate_per_day: float) -> float:
        """Returns what stalled chips cost a year."""
        lost = snapshot_rate_per_day * self.stall_seconds * self.job_chips / SECONDS_PER_DAY
        return DAYS_PER_YEAR * chips * min(1.0, lost) * self.chip_day_cost

    def storage_cost(self, chips: float, snapshot_rate_per_day: float) -> float:
        """Returns what keeping snapshots costs a year."""
        return chips * snapshot_rate_per_day * self.snapshot_bytes * self.kept_days * self.byte_year_cost


@dataclass(frozen=True)
class Stratum:
    """Chips of one kind or at one place.

    Attributes:
        name: What it is called in reports.
        chips: Number of chips, whole.
        chip_flops_per_day: FLOPs that one of them can do per day.
        reliability: Probability that inspecting an involved chip that holds a snapshot shows it; 0 without logging.
        sample_cost: What inspecting one chip costs.
    """

    name: str
    chips: float
    chip_flops_per_day: float
    reliability: float
    sample_cost: float

    def __post_init__(self) -> None:
        whole("chips", self.chips, 1)
        positive("chip_flops_per_day", self.chip_flops_per_day, "FLOPs per day")
        share("reliability", self.reliability)
        positive("sample_cost", self.sample_cost, "units of cost")


@dataclass(frozen=True)
class Plan:
    """The plan found: rate, whole samples per period in each stratum, what they see and cost.

    Attributes:
        snapshot_rate_per_day: f.
        samples: Whole samples per period, one for each stratum.
        shares: How the Prover who knows them would spread the run, one for each stratum.
        detection_probability: p against that Prover, sampling with replacement.
        detection_probability_hypergeometric: p over whole chips, without replacement, against the Prover who also
            withholds as many of the drawn chips as the plan allows for, and spreads the run for that.
        sampling_cost: Cost of inspections a year.
        stall_cost: Cost of stalled chips a year.
        storage_cost: Cost of keeping snapshots a year.
    """

    snapshot_rate_per_day: float
    samples: tuple[int, ...]
    shares: tuple[float, ...]
    detection_probability: float
    detection_probability_hypergeometric: float
    sampling_cost: float
    stall_cost: float
    storage_cost: float


def best_plan(
    *,
    budget: float,
    flops_threshold: float,
    period_days: float,
    strata: tuple[Stratum, ...],
    costs: CostModel,
    snapshot_rate_per_day: float | None = None,
    withheld: int = 0,
) -> Plan:
    """Returns the plan that is most likely to catch the run that is hardest to catch, for a budget a year.

    The run takes one monitoring period; by theorem 1 and appendix C.1 nothing much is gained by other lengths.

    Args:
        budget: Units of cost a year for samples, stalls and storage together.
        flops_threshold: Size of the violation in FLOPs (H).
        period_days: Monitoring period in days (T_m).
        strata: The fleet.
        costs: What snapshots cost.
        snapshot_rate_per_day: Fixes f; otherwise the best one between 1e-6 and 1e6 is chosen.
        withheld: Drawn chips a period that may stay unverified once the draw is known. They lower the stated p; the
            plan is chosen as if there were none, because only then does the Prover have a best answer in closed form.

    Raises:
        DetectionDomainError: An argument is out of range, the run does not fit on the fleet or fits on what shows
            nothing, or the budget does not pay for a single sample.
    """
    money = float(positive("budget", budget, "units of cost"))
    if not strata:
        raise DetectionDomainError("a fleet needs at least one stratum")
    fleet = _Fleet.of(strata, flops_threshold, period_days)
    if snapshot_rate_per_day is not None:
        rate = float(positive("snapshot_rate_per_day", snapshot_rate_per_day, "snapshots per day"))
    else:
        # The exponent of the miss is smooth in f with one maximum; a grid and a finer one around its best find it.
        rates = np.logspace(-6, 6, _COARSE)
        for _ in range(3):
            best = int(np.argmax(_exponents(fleet, costs, money, rates)))
            rate = float(rates[best])
            rates = np.geomspace(rates[max(0, best - 1)], rates[min(len(rates) - 1, best + 1)], _FINE)
    return _plan(fleet, costs, money, rate, withheld)


@dataclass(frozen=True)
class _Fleet:
    chips: FloatArray
    speeds: FloatArray
    reliability: FloatArray
    sample_cost: FloatArray
    flops: float
    days: float

    @classmethod
    def of(cls, strata: tuple[Stratum, ...], flops_threshold: float, period_days: float) -> _Fleet:
        return cls(
            np.array([float(stratum.chips) for stratum in strata]),
            np.array([stratum.chip_flops_per_day for stratum in strata]),
            np.array([stratum.reliability for stratum in strata]),
            np.array([stratum.sample_cost for stratum in strata]),
            float(positive("flops_threshold", flops_threshold, "FLOPs")),
            float(positive("period_days", period_days, "days")),
        )

    def shown(self, rates: FloatArray) -> FloatArray:
        """Returns r_i at each rate; shape (rates, strata)."""
        shown: FloatArray = -np.expm1(-rates[:, None] * self.days) * self.reliability
        return shown

    def _run(self, rates: FloatArray) -> dict[str, Any]:
        """Returns what all formulas of `analysis.stratified_sampling` ask of the run and its chips."""
        return {
            "flops_threshold": self.flops,
            "chip_flops_per_day": self.speeds,
            "chips": self.chips,
            "run_days": self.days,
            "shown": self.shown(rates),
        }

    def wanted(self, rates: FloatArray, money: FloatArray) -> FloatArray:
        """Returns real samples per period for `money` a year, none above the chips of its stratum; (rates, strata)."""
        samples = best_samples(
            budget=money[:, None] * self.days / DAYS_PER_YEAR,
            sample_cost=self.sample_cost,
            **self._run(rates),
        )
        return np.minimum(samples, self.chips)

    def attack(self, rates: FloatArray, samples: FloatArray) -> FloatArray:
        """Returns the shares of the Prover who knows the samples; (rates, strata)."""
        return worst_shares(
            samples=samples,
            **self._run(rates),
        )

    def probability(self, rates: FloatArray, samples: FloatArray, shares: FloatArray) -> FloatArray:
        """Returns p at each rate."""
        return strata_probability(
            samples=samples,
            shares=shares,
            **self._run(rates),
        )


def _left(fleet: _Fleet, costs: CostModel, money: float, rate: float) -> float:
    """Returns what is left for samples in a year."""
    total = float(fleet.chips.sum())
    return money - costs.stall_cost(total, rate) - costs.storage_cost(total, rate)


def _exponents(fleet: _Fleet, costs: CostModel, money: float, rates: FloatArray) -> FloatArray:
    """Returns -log(miss) at each rate for real numbers of samples; -infinity where snapshots exceed the budget."""
    left = np.array([_left(fleet, costs, money, float(rate)) for rate in rates])
    samples = fleet.wanted(rates, np.maximum(left, 0.0))
    found = fleet.probability(rates, samples, fleet.attack(rates, samples))
    with np.errstate(divide="ignore"):
        return np.where(left > 0, -np.log1p(-found), -np.inf)


def _plan(fleet: _Fleet, costs: CostModel, money: float, rate: float, withheld: int) -> Plan:
    total = float(fleet.chips.sum())
    stalls, storage = costs.stall_cost(total, rate), costs.storage_cost(total, rate)
    left, rates = max(0.0, _left(fleet, costs, money, rate)), np.array([rate])
    samples = whole_samples(samples=fleet.wanted(rates, np.array([left]))[0], chips=fleet.chips)
    yearly = DAYS_PER_YEAR / fleet.days
    payable = left / yearly * (1 + 1e-12)
    while (samples * fleet.sample_cost).sum() > payable and samples.any():
        samples[np.argmax(np.where(samples > 0, fleet.sample_cost, 0.0))] -= 1
    samples = _improved(fleet, rates, samples, payable)
    if not samples.any():
        least = stalls + storage + float(fleet.sample_cost.min()) * yearly
        raise InfeasibleError(
            f"the budget does not pay for one sample a period: snapshots cost {stalls + storage:.6g} a year and one "
            f"sample a period makes that {least:.6g}; raise budget or period_days, or lower the snapshot rate"
        )
    shares = fleet.attack(rates, samples)[0]
    return Plan(
        snapshot_rate_per_day=rate,
        samples=tuple(int(count) for count in samples),
        shares=tuple(float(part) for part in shares),
        detection_probability=float(fleet.probability(rates, samples, shares)[0]),
        detection_probability_hypergeometric=_whole_chips(fleet, rates, samples, shares, withheld),
        sampling_cost=float((samples * fleet.sample_cost).sum() * yearly),
        stall_cost=stalls,
        storage_cost=storage,
    )


def _improved(fleet: _Fleet, rates: FloatArray, samples: FloatArray, payable: float) -> FloatArray:
    """Returns whole samples that no exchange of one, and no addition of one, makes better against the worst run."""

    def seen(counts: FloatArray) -> float:
        return float(fleet.probability(rates, counts, fleet.attack(rates, counts))[0])

    steps = np.eye(len(samples))
    moves = [more - less for more in steps for less in (*steps, np.zeros(len(samples))) if np.any(more - less)]
    best = seen(samples)
    improved = True
    while improved:
        improved = False
        for move in moves:
            tried = samples + move
            possible = np.all((tried >= 0) & (tried <= fleet.chips)) and (tried * fleet.sample_cost).sum() <= payable
            if possible and (found := seen(tried)) > best * (1 + 1e-12):
                samples, best, improved = tried, found, True
    return samples


def _whole_chips(fleet: _Fleet, rates: FloatArray, samples: FloatArray, shares: FloatArray, withheld: int) -> float:
    if withheld:
        draw = GroupedDraw(
            chips=fleet.chips,
            drawn=samples,
            shown=fleet.shown(rates)[0],
            chip_flops_per_day=fleet.speeds,
            flops_threshold=fleet.flops,
            run_days=fleet.days,
        )
        return least_probability_despite([draw], withheld=withheld)[0]
    involved = np.ceil(shares * fleet.flops / (fleet.speeds * fleet.days) * (1 - 1e-12))
    seen = seen_probability(
        population=fleet.chips, marked=np.minimum(involved, fleet.chips), drawn=samples, shown=fleet.shown(rates)[0]
    )
    with np.errstate(divide="ignore"):
        return float(plain(-np.expm1(np.log1p(-np.asarray(seen)).sum())))
