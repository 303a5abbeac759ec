"""Runs that show no chip anything false: where and when they are done decides whether they are seen.

The registry is tried for real, with signed statements. What other placements do to p is simulated: fleets are played
out, without any formula, and compared with the formula of `analysis.attack`.
"""

from __future__ import annotations

from functools import partial

from redteam.on_chips import HIDDEN_RUN, cheat
from redteam.row import Histories, Outcome, Row
from redteam.workshop import Workshop
from support.custody_trade import Trade

from analysis import attack, simulated_fleet
from analysis.strategies import Goal, Holding, Policy, Strategy
from verifier.registry.audit import audit

CHIPS, INVOLVED, DRAWN = 1000, 50, 60
DAYS, RATE = 30.0, 0.1
"""Days of a run as it would be done openly, and of a monitoring period; snapshots a chip and day."""
HISTORIES = 4000
BELOW = 10
"""Losses of 1,000 chips in a year that the audit's policy takes for normal."""


def lost(number: int, shop: Workshop, seed: int) -> Outcome:
    """An owner says that some chips are lost, which the run needs; nobody draws them any more."""
    trade = Trade(shop.place())
    try:
        first = seed * 2 * CHIPS
        trade.supply(range(first, first + CHIPS))
        trade.say("lost", "acme", range(first, first + number))
        found = audit(trade.registry)
        there = trade.registry.population_size()
    finally:
        trade.registry.close()
    if there != CHIPS - number:
        raise AssertionError(f"{there} chips can be drawn")
    accused = frozenset(each.id for each in found if each.severity in ("warning", "violation"))
    return Outcome(findings=accused, gain=number / INVOLVED, cost=1.0)


def played(holdings: int, flops: float, innocent: float, strategy: Strategy, shop: Workshop, seed: int) -> Outcome:
    """Plays fleets out, and computes the same.

    Args:
        holdings: Owners, each with as many chips, of whose chips as many are drawn.
        flops: Of the run, in units of what 50 chips do in 30 days.
        innocent: FLOPs after which its snapshots show a violation, in the same units.
        strategy: How it is done.
        shop: Not needed.
        seed: Of the histories.
    """
    size = INVOLVED * DAYS
    game = {
        "holdings": tuple(Holding(CHIPS // holdings, 1.0) for _ in range(holdings)),
        "policy": Policy(
            samples=DRAWN if holdings == 1 else (DRAWN // holdings,) * holdings,
            period_days=DAYS,
            snapshot_rate_per_day=RATE,
        ),
        "goal": Goal(flops * size, flops * DAYS, innocent * size),
        "strategy": strategy,
    }
    seen = simulated_fleet.simulate(**game, trials=HISTORIES, seed=seed).detected()
    histories = Histories(found=round(seen.value * seen.count), of=seen.count, formula=attack.found_probability(**game))
    return Outcome(findings=frozenset(), gain=strategy.done, cost=strategy.done, histories=histories)


LOST = "1 if enough chips for the run cannot be drawn"
DONE = "the share of the run that is done"

ROWS = (
    Row(
        name="as many chips said to be lost as the audit takes for normal",
        source=cheat(7),
        wants=HIDDEN_RUN,
        gains=LOST,
        attack=partial(lost, BELOW),
        chips=0,
        least=BELOW / INVOLVED,
        most=BELOW / INVOLVED,
        note="10 of 1,000 chips in a year, a fifth of those that the run needs. The audit's policy decides how many.",
    ),
    Row(
        name="all chips of a run said to be lost",
        source=cheat(7),
        wants=HIDDEN_RUN,
        gains=LOST,
        attack=partial(lost, INVOLVED),
        expected=("registry.loss.mass",),
        chips=0,
        note="50 of an owner's 1,000 chips. Losses are counted by holder, without a draw.",
    ),
    *(
        Row(
            name=name,
            source=source,
            wants=wants,
            gains=DONE,
            attack=partial(played, holdings, flops, innocent, strategy),
            simulated=True,
            note=note,
        )
        for name, source, wants, holdings, flops, innocent, strategy, note in (
            (
                "a run that hides by nothing",
                "control",
                HIDDEN_RUN,
                1,
                1.0,
                0.0,
                Strategy(),
                "On 50 chips for 30 days.",
            ),
            (
                "longer on fewer chips",
                cheat(12),
                HIDDEN_RUN,
                1,
                1.0,
                0.0,
                Strategy(stretch=5.0),
                "On 10 chips for 150 days, over five draws.",
            ),
            (
                "more chips, each for a shorter time",
                cheat(13),
                HIDDEN_RUN,
                1,
                1.0,
                0.0,
                Strategy(spread=10.0),
                "On 500 chips for 3 days. Most take no snapshot in that time, and more of them are drawn.",
            ),
            (
                "several owners, a few chips of each",
                cheat(14),
                HIDDEN_RUN,
                4,
                1.0,
                0.0,
                Strategy(shares=(0.25,) * 4),
                "On 50 of 1,000 chips, whose four owners are drawn from in proportion.",
            ),
            (
                "a run of just below H",
                cheat(15),
                "stay below a threshold",
                1,
                2.0,
                1.0,
                Strategy(done=0.5),
                "Half of a run of 2H is H, of which nothing shows a violation; p is for runs of 2H.",
            ),
            (
                "a run that stops before 2H",
                cheat(15),
                "stay below a threshold",
                1,
                2.0,
                1.0,
                Strategy(done=0.75),
                "Half as many days show a violation as those of a run of 2H.",
            ),
        )
    ),
)
