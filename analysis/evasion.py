"""What the Prover could do instead: other lengths, simulated beside the formula, and the best of all moves together.

Detection is that of an inspection as it happens: whole chips, none twice in a period, snapshots that stay on the chips,
inspections that miss what `Scenario.missed` says, and a Prover who withholds `Scenario.withheld` of the drawn chips.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis import attack, periods, simulated_fleet
from analysis.domain import DetectionDomainError, FloatArray, InfeasibleError
from analysis.hypergeometric import seen_probability
from analysis.scenario import Scenario
from analysis.strategies import Goal, Holding, Policy, Strategy, described

STRETCHES = (2.0, 5.0, 10.0)  # how many times as long the Prover takes, on as many times fewer chips
TRIALS = 2000  # simulated fleets for each way
SPREADS = (2.0, 10.0)  # on how many times more chips, for as many times shorter


@dataclass(frozen=True)
class Way:
    """One way in which the Prover could do the run.

    Attributes:
        name: What it is.
        chips: Whole monitored chips that it needs.
        days: How long it takes.
        probability: p with the scenario's samples; None if it does not fit on the chips.
        simulated: The same in simulated fleets, with its 95 % interval; None if nothing was simulated.
    """

    name: str
    chips: int
    days: float
    probability: float | None
    simulated: simulated_fleet.Estimate | None = None


@dataclass(frozen=True)
class Worst:
    """What a Prover who knows how chips are inspected does best, of all that `analysis.attack` searches.

    Attributes:
        strategy: Its moves, in words.
        days: Length of the run.
        probability: p against it.
    """

    strategy: str
    days: float
    probability: float


def seen(scenario: Scenario, *, samples: FloatArray | float, involved: FloatArray | float, days: float) -> FloatArray:
    """Returns the probability that inspections see a run of so many chips for so many days.

    Args:
        scenario: Chips, period, rate and what inspections miss.
        samples: Different chips sampled in each period, whole.
        involved: Chips of the run, whole; broadcast against `samples`.
        days: Length of the run.

    Raises:
        DetectionDomainError: More chips are sampled or involved than there are.
    """
    log_miss: FloatArray = np.zeros(np.broadcast_shapes(np.shape(samples), np.shape(involved)))
    count = int(periods.periods_of_run(run_days=days, period_days=scenario.period_days))
    with np.errstate(divide="ignore"):
        for number in range(1, count + 1):
            held = -np.expm1(-scenario.rate * min(number * scenario.period_days, days))
            found = seen_probability(
                population=scenario.chips,
                marked=involved,
                drawn=samples,
                shown=held * (1 - scenario.missed),
                withheld=scenario.withheld,
            )
            log_miss = log_miss + np.log1p(-np.asarray(found))
    return np.asarray(-np.expm1(log_miss))


def way(scenario: Scenario, samples: int, *, days: float, name: str = "") -> Way:
    """Returns how the violation fares if the Prover takes so many days, on as few monitored chips as that needs.

    Args:
        scenario: The violation and how chips are inspected; its own length does not matter.
        samples: Samples a period, whole.
        days: Length of the run.
        name: What to call it.

    Raises:
        DetectionDomainError: `days` is not positive and finite, or more chips are sampled than there are.
    """
    try:
        flops = replace(scenario, run_days=days).monitored_flops()
    except InfeasibleError:  # unmonitored chips do all of it
        return Way(name, 0, days, 0.0)
    chips = float(np.ceil(flops / (scenario.chip_flops_per_day * days) * (1 - 8 * np.finfo(float).eps)))
    fits = chips <= scenario.chips
    found = float(seen(scenario, samples=samples, involved=chips, days=days)) if fits else None
    return Way(name, int(chips), days, found)


def worst(scenario: Scenario, samples: int) -> Worst:
    """Returns what a Prover does best who knows the policy and may take up to `STRETCHES[-1]` times as long.

    The search of `attack.best_strategy` starts anew at each length, with unmonitored chips as a holding of their own.

    Args:
        scenario: The violation and how chips are inspected.
        samples: Samples a period, whole.

    Raises:
        DetectionDomainError: The run does not fit on the chips.
    """
    holdings = [Holding(int(scenario.chips), scenario.chip_flops_per_day)]
    drawn = [samples]
    if scenario.unmonitored_chips:
        holdings.append(Holding(int(scenario.unmonitored_chips), scenario.chip_flops_per_day, logs=False))
        drawn.append(0)
    policy = _policy(scenario, tuple(drawn))
    found = []
    for factor in (1.0, *STRETCHES):
        goal = Goal(scenario.flops, scenario.run_days * factor)
        best = attack.best_strategy(
            holdings=tuple(holdings), policy=policy, goal=goal, longest_days=scenario.run_days * STRETCHES[-1]
        )
        days = best.strategy.length(goal)
        found.append(Worst(described(best.strategy), days, best.probability))
    return min(found, key=lambda each: each.probability)


def ways(scenario: Scenario, samples: int) -> tuple[Way, ...]:
    """Returns how the run fares as stated, longer on fewer chips, and shorter on more, with simulated fleets beside.

    Args:
        scenario: The violation and how chips are inspected.
        samples: Samples a period, whole.

    Raises:
        DetectionDomainError: More chips are sampled than there are.
    """
    plans = [("as stated", 1.0)]
    plans += [(f"{factor:g} times as long, on fewer chips", factor) for factor in STRETCHES]
    plans += [(f"{factor:g} times as many chips, for a shorter time", 1 / factor) for factor in SPREADS]
    found = []
    for name, factor in plans:
        one = way(scenario, samples, days=scenario.run_days * factor, name=name)
        found.append(replace(one, simulated=simulated(scenario, samples, days=one.days)))
    return tuple(found)


def _policy(scenario: Scenario, samples: int | tuple[int, ...]) -> Policy:
    """Returns how the scenario's chips are inspected with these samples, of all chips or of each holding."""
    return Policy(
        samples=samples,
        period_days=scenario.period_days,
        snapshot_rate_per_day=scenario.rate,
        replay_missed=scenario.missed,
        withheld=int(scenario.withheld),
    )


def simulated(
    scenario: Scenario, samples: int, *, days: float, trials: int = TRIALS
) -> simulated_fleet.Estimate | None:
    """Returns how often inspections found a run of so many days in fleets played out at random.

    Args:
        scenario: The violation and how chips are inspected; its own length does not matter.
        samples: Samples a period, whole.
        days: Length of the run.
        trials: Number of fleets.

    Returns:
        The fraction with its 95 % interval; None if the run does not fit on the chips, if unmonitored ones do all of
        it, or if the fleet is too large to be simulated.
    """
    try:
        outcome = simulated_fleet.simulate(
            holdings=(Holding(int(scenario.chips), scenario.chip_flops_per_day),),
            policy=_policy(scenario, samples),
            goal=Goal(replace(scenario, run_days=days).monitored_flops(), days),
            strategy=Strategy(),
            trials=trials,
            seed=1,
        )
    except DetectionDomainError:
        return None
    return outcome.detected()
