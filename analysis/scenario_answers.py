"""What an analyst asks of a scenario, answered: samples, detection probability, what evades, costs.

The formulas are those of the other modules; here they are put together for one `Scenario`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from analysis import costs, detection, economics, periods, planning
from analysis.catalog import System, load_systems
from analysis.domain import ENOUGH, FloatArray, InfeasibleError, least_whole
from analysis.evasion import Way, Worst, seen, ways, worst
from analysis.scenario import Scenario


@dataclass(frozen=True)
class Proving:
    """What a published proof system would take for a run: seconds of one machine, and machines to keep up with it."""

    system: System
    seconds: float
    machines: float


@dataclass(frozen=True)
class Answers:
    """The answers; probabilities are those of seeing the violation had there been one, never of compliance.

    Attributes:
        flops: FLOPs that have to run on monitored chips (H).
        involved: Whole chips that this takes in T days.
        needed: Least samples a period that reach the wanted probability; None if sampling all chips does not.
        samples: Samples a period that all else is computed with: those of the scenario, or `needed`.
        probability: p with them.
        by_method: p with them by each formula, for an inspection that misses nothing; None outside its domain.
        per_year: Samples a year.
        inspectors: Inspectors, at 1000 chips a year each.
        smallest_chips: Least number of involved chips that is seen with the wanted probability in T days; None if none.
        smallest_flops: FLOPs of a violation of that many chips and all unmonitored ones.
        ways: What the Prover could do instead.
        worst: What it does best, within `STRETCHES[-1]` times the run's length.
        stalled: Fraction of a job's time lost to snapshots.
        kept_bytes: Bytes of snapshots kept at any time.
        sampling_cost: Cost of the samples a year.
        stall_cost: Cost of stalled chips a year.
        storage_cost: Cost of keeping snapshots a year.
        plan: The best plan for the budget; None without a budget.
        replayed: Fraction of the job's training that inspections recompute; None if not asked.
        proofs: What published proof systems would take.
    """

    flops: float
    involved: int
    needed: int | None
    samples: int
    probability: float
    by_method: dict[str, float | None]
    per_year: float
    inspectors: int
    smallest_chips: int | None
    smallest_flops: float | None
    ways: tuple[Way, ...]
    worst: Worst
    stalled: float
    kept_bytes: float
    sampling_cost: float
    stall_cost: float
    storage_cost: float
    plan: planning.Plan | None
    replayed: float | None
    proofs: tuple[Proving, ...]


def samples_needed(scenario: Scenario) -> int | None:
    """Returns the least samples a period that reach the wanted probability; None if sampling all chips does not.

    Raises:
        DetectionDomainError: The run does not fit on the chips, or all of it fits on unmonitored ones.
    """
    involved = involved_chips(scenario)
    return _least(scenario, lambda count: seen(scenario, samples=count, involved=involved, days=scenario.run_days))


def samples_used(scenario: Scenario) -> int:
    """Returns the samples a period that the scenario has planned, or as many as it takes.

    Raises:
        DetectionDomainError: None are planned and none are enough, or the run does not fit.
    """
    return _used(scenario, None if scenario.samples is not None else samples_needed(scenario))


def smallest_involved(scenario: Scenario, samples: float) -> int | None:
    """Returns the least number of involved chips that so many samples show with the wanted probability; None if none.

    Raises:
        DetectionDomainError: More chips are sampled than there are.
    """
    return _least(scenario, lambda count: seen(scenario, samples=samples, involved=count, days=scenario.run_days))


def involved_chips(scenario: Scenario) -> float:
    """Returns the whole chips that the violation takes in T days.

    Raises:
        DetectionDomainError: The run does not fit on the chips, or all of it fits on unmonitored ones.
    """
    return float(
        detection.involved_chips(
            flops_threshold=scenario.monitored_flops(),
            chip_flops_per_day=scenario.chip_flops_per_day,
            chips=scenario.chips,
            run_days=scenario.run_days,
        )
    )


def answer(scenario: Scenario) -> Answers:
    """Returns all answers.

    Raises:
        DetectionDomainError: The run does not fit on the chips, all of it fits on unmonitored ones, no number of
            samples is planned and none is enough, or the budget does not pay for one.
    """
    flops, involved = scenario.monitored_flops(), involved_chips(scenario)
    needed = samples_needed(scenario)
    samples = _used(scenario, needed)
    smallest = smallest_involved(scenario, samples)
    yearly = float(costs.annual_samples(samples=samples, period_days=scenario.period_days))
    sampling, stalls, storage = yearly_costs(scenario, samples)
    return Answers(
        flops=flops,
        involved=int(involved),
        needed=needed,
        samples=samples,
        probability=float(seen(scenario, samples=samples, involved=involved, days=scenario.run_days)),
        by_method=_by_method(scenario, samples),
        per_year=yearly,
        inspectors=int(costs.inspectors_needed(samples_per_year=yearly)),
        smallest_chips=smallest,
        smallest_flops=None if smallest is None else violation_of(scenario, smallest),
        ways=ways(scenario, samples),
        worst=worst(scenario, samples),
        stalled=float(
            costs.stall_fraction(
                job_chips=scenario.costs.job_chips,
                snapshot_rate_per_day=scenario.rate,
                stall_seconds=scenario.costs.stall_seconds,
            )
        ),
        kept_bytes=float(
            costs.stored_bytes(
                chips=scenario.chips,
                snapshot_rate_per_day=scenario.rate,
                snapshot_bytes=scenario.costs.snapshot_bytes,
                kept_days=scenario.costs.kept_days,
            )
        ),
        sampling_cost=sampling,
        stall_cost=stalls,
        storage_cost=storage,
        plan=plan_for(scenario, scenario.budget) if scenario.budget is not None else None,
        replayed=_replayed(scenario, samples),
        proofs=proofs(scenario.flops, scenario.run_days),
    )


def yearly_costs(scenario: Scenario, samples: int) -> tuple[float, float, float]:
    """Returns what samples, stalled chips and the keeping of snapshots cost a year."""
    yearly = float(costs.annual_samples(samples=samples, period_days=scenario.period_days))
    return (
        yearly * scenario.sample_cost,
        scenario.costs.stall_cost(scenario.chips, scenario.rate),
        scenario.costs.storage_cost(scenario.chips, scenario.rate),
    )


def plan_for(scenario: Scenario, budget: float) -> planning.Plan:
    """Returns the plan that does best against the violation for a budget a year, whatever rate that takes.

    Raises:
        DetectionDomainError: The budget does not pay for one sample, or the run does not fit on the chips.
    """
    return planning.best_plan(
        budget=budget,
        flops_threshold=scenario.monitored_flops(),
        period_days=scenario.period_days,
        strata=(
            planning.Stratum(
                name="chips",
                chips=scenario.chips,
                chip_flops_per_day=scenario.chip_flops_per_day,
                reliability=1 - scenario.missed,
                sample_cost=scenario.sample_cost,
            ),
        ),
        costs=scenario.costs,
        withheld=int(scenario.withheld),
    )


def proofs(flops: float, run_days: float) -> tuple[Proving, ...]:
    """Returns what each published proof system whose work can be counted would take for a run.

    Args:
        flops: Size of the run in FLOPs.
        run_days: Its length in days.

    Raises:
        DetectionDomainError: An argument is not positive and finite.
    """
    found = []
    for system in load_systems():
        if system.kind == "proof" and system.flops is not None and system.prover_seconds is not None:
            seconds = float(
                economics.proving_seconds(flops=flops, proved_flops=system.flops, prover_seconds=system.prover_seconds)
            )
            machines = float(economics.machines_to_keep_up(seconds=seconds, run_days=run_days))
            found.append(Proving(system, seconds, machines))
    return tuple(found)


def violation_of(scenario: Scenario, involved: int) -> float:
    """Returns the FLOPs of a violation of so many monitored chips, and all unmonitored ones, in T days."""
    return (involved + scenario.unmonitored_chips) * scenario.chip_flops_per_day * scenario.run_days


def _least(scenario: Scenario, probability: Callable[[FloatArray], FloatArray]) -> int | None:
    """Returns the least whole number up to C at which the wanted probability is reached."""
    wanted, most = scenario.wanted * ENOUGH, np.asarray(scenario.chips, dtype=np.float64)
    if probability(most) < wanted:
        return None
    return int(least_whole(lambda count: probability(count) >= wanted, np.zeros(()), most))


def _used(scenario: Scenario, needed: int | None) -> int:
    if scenario.samples is not None:
        return int(scenario.samples)
    if needed is None:
        raise InfeasibleError(
            f"sampling every chip does not see the run with probability {scenario.wanted:g}, because chips may hold no "
            "snapshot, inspections miss it or the chips are withheld; raise inspection.rate, lower "
            "inspection.probability, inspection.missed or inspection.withheld, or give inspection.samples"
        )
    return needed


def _by_method(scenario: Scenario, samples: int) -> dict[str, float | None]:
    parameters = scenario.fleet() | {"samples": samples, "withheld": scenario.withheld}
    linear = {name: value for name, value in parameters.items() if name not in ("run_days", "withheld")}
    methods: dict[str, Callable[[], FloatArray]] = {
        "hypergeometric": lambda: periods.accumulating_probability_hypergeometric(**parameters),
        "accumulating": lambda: periods.accumulating_probability(**parameters),
        "eq1": lambda: detection.detection_probability_eq1(**parameters),
    }
    if not scenario.withheld:  # the linearised form has no place for it
        methods["linearised"] = lambda: detection.detection_probability_linearised(**linear)
    found: dict[str, float | None] = {}
    for name, method in methods.items():
        try:
            found[name] = float(method())
        except InfeasibleError:
            found[name] = None
    return found


def _replayed(scenario: Scenario, samples: int) -> float | None:
    how = scenario.replaying
    if how is None:
        return None
    drawn = samples * float(periods.periods_of_run(run_days=scenario.run_days, period_days=scenario.period_days))
    return float(
        economics.replayed_fraction(
            samples=drawn,
            chips=scenario.chips,
            job_chips=how.job_chips,
            snapshots_per_chip=scenario.rate * min(scenario.run_days, scenario.period_days),
            segment_steps=how.segment_steps,
            steps=how.steps,
            ranks_replayed=1 if how.given_collectives else how.job_chips,
        )
    )
