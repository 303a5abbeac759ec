"""What a Prover may do with a run that must not be seen: the moves of the paper's threat model, as crews of chips.

A `Strategy` has one knob for each move, and moves combine: longer on fewer chips, shorter on more, several runs
reported for one, shared among Provers, chips sold afterwards, weights swapped out before snapshots, stopping early,
tampering. `crews` turns it into who computes when, and which of that time incriminates. The simulator
(`analysis.simulated_fleet`) and the formula (`analysis.strategy_probability`) both start from there. Times are days,
counted from the run's start.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from analysis.domain import DetectionDomainError, InfeasibleError, not_negative, positive, share, whole

OUTSIDE = -1  # where chips are that their directory no longer leads to
Windows = tuple[tuple[float, float], ...]
_MOST_PIECES = 1000
_EXACT = 1e-9  # relative; rounding errors must not cost a chip or an inspection


@dataclass(frozen=True)
class Holding:
    """Chips of one Prover, or of one kind.

    Attributes:
        chips: Number of chips (C), whole.
        chip_flops_per_day: FLOPs that one of them can do per day (a).
        logs: Whether they take snapshots; older and exempt chips do not.
    """

    chips: int
    chip_flops_per_day: float
    logs: bool = True

    def __post_init__(self) -> None:
        whole("chips", self.chips, 1)
        positive("chip_flops_per_day", self.chip_flops_per_day, "FLOPs per day")


@dataclass(frozen=True)
class Policy:
    """How the Verifier inspects, and what inspections miss.

    Attributes:
        samples: Chips drawn each period (s): one number draws from all holdings together, a tuple from each apart.
        period_days: Monitoring period in days (T_m).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).
        within_days: Days after a run's end up to which an inspection still counts as in time; None is up to the first
            inspection that does not come before the end, as in the paper.
        replacement: Draw with replacement, as equation 1 does; otherwise no chip twice in one inspection.
        replay_missed: Probability that an inspected chip's snapshots wrongly pass, anew at each inspection.
        tampering_missed: Probability that the inspection of a tampered chip does not notice.
        loss_excused: Probability that a drawn chip that cannot be presented is believed to be lost honestly.
        swap_hidden: Probability that weights can be swapped out before a snapshot: 0 for unforeseeable
            moments, 1 for announced ones.
        soundness_error: Probability that a run's transcript fools the replay, on every chip of the run at once.
        false_alarm: Probability that inspecting one honest chip raises an alarm.
        withheld: Drawn chips of each inspection that may stay unverified once the draw is known. The Prover knows the
            draw, and withholds those that would show a run, if they are no more than that.
        initialisation_checked: Whether runs must start from seeded random weights (or weights with provenance).
    """

    samples: int | tuple[int, ...]
    period_days: float
    snapshot_rate_per_day: float
    within_days: float | None = None
    replacement: bool = False
    replay_missed: float = 0.0
    tampering_missed: float = 0.0
    loss_excused: float = 0.0
    swap_hidden: float = 0.0
    soundness_error: float = 0.0
    false_alarm: float = 0.0
    withheld: int = 0
    initialisation_checked: bool = True

    def __post_init__(self) -> None:
        positive("period_days", self.period_days, "days")
        positive("snapshot_rate_per_day", self.snapshot_rate_per_day, "snapshots per day")
        if self.within_days is not None:
            not_negative("within_days", self.within_days, "days")
        for name in (
            "replay_missed", "tampering_missed", "loss_excused", "swap_hidden", "soundness_error", "false_alarm",
        ):  # fmt: skip
            share(name, getattr(self, name))
        whole("withheld", self.withheld, 0)

    def check(self, holdings: tuple[Holding, ...]) -> None:
        """Refuses samples that do not fit the fleet.

        Raises:
            DetectionDomainError: There is no holding, samples are not whole, or not one for each holding.
            InfeasibleError: More chips are drawn than there are.
        """
        if not holdings:
            raise DetectionDomainError("a fleet needs at least one holding of chips")
        whole("samples", self.samples, 0)
        if isinstance(self.samples, tuple) and len(self.samples) != len(holdings):
            raise DetectionDomainError(
                f"{len(self.samples)} numbers of samples for {len(holdings)} holdings; give each"
            )
        for drawn, chips in self.pools(holdings):
            if drawn > chips and not self.replacement:
                raise InfeasibleError(f"samples = {drawn:.0f}: more than the {chips} chips drawn from; lower samples")

    def pools(self, holdings: tuple[Holding, ...]) -> list[tuple[int, int]]:
        """Returns samples and chips of everything that is drawn from apart."""
        if isinstance(self.samples, tuple):
            return [(drawn, holding.chips) for drawn, holding in zip(self.samples, holdings, strict=True)]
        return [(self.samples, sum(holding.chips for holding in holdings))]


@dataclass(frozen=True)
class Goal:
    """What the Prover wants to compute.

    Attributes:
        flops: Size of the run in FLOPs.
        days: Length of the run if nothing is done to hide it, in days (T).
        innocent_flops: FLOPs after which its snapshots incriminate (H of the 2H rule); 0 if `flops` counts only what
            comes after that.
    """

    flops: float
    days: float
    innocent_flops: float = 0.0

    def __post_init__(self) -> None:
        positive("flops", self.flops, "FLOPs")
        positive("days", self.days, "days")
        not_negative("innocent_flops", self.innocent_flops, "FLOPs")


@dataclass(frozen=True)
class Strategy:
    """What the Prover does about being inspected; the defaults do nothing.

    Attributes:
        honest: There is no run at all.
        stretch: Take this many times as long on as many times fewer chips (k of appendix C.1), at least 1.
        spread: Give each chip a run's length divided by this, on as many times more chips (T/t of appendix C.2).
        sliced: Use the additional chips of `spread` one after the other instead of at the same time; then it is whole.
        pieces: Report the run as this many shorter ones, each said to start where the one before ended.
        shares: Share of the run at each holding, summing to 1; None is all at the first.
        sell_to: Where the chips go afterwards: a holding's number, OUTSIDE, or None to keep them.
        sell_after_days: Days between a chip's last work and its sale.
        swap: Try to swap the weights out before each snapshot.
        done: Fraction of the run after which it stops, above 0 and at most 1.
        tampered: Fraction of its chips that are tampered with.
        start_day: Days from an inspection to the start of the run, less than a period.
    """

    honest: bool = False
    stretch: float = 1.0
    spread: float = 1.0
    sliced: bool = False
    pieces: int = 1
    shares: tuple[float, ...] | None = None
    sell_to: int | None = None
    sell_after_days: float = 0.0
    swap: bool = False
    done: float = 1.0
    tampered: float = 0.0
    start_day: float = 0.0

    def __post_init__(self) -> None:
        for name in ("stretch", "spread"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 1):
                raise DetectionDomainError(f"{name} must be finite and at least 1, not {value!r}")
        if self.sliced:
            whole("spread", self.spread, 1)
            if self.spread > _MOST_PIECES:
                raise DetectionDomainError(f"spread = {self.spread:g} slices are too many; use at most {_MOST_PIECES}")
        whole("pieces", self.pieces, 1)
        if self.pieces > _MOST_PIECES:
            raise DetectionDomainError(f"pieces = {self.pieces} are too many; use at most {_MOST_PIECES}")
        not_negative("sell_after_days", self.sell_after_days, "days")
        not_negative("start_day", self.start_day, "days")
        share("tampered", self.tampered)
        share("done", self.done)
        if self.done == 0:
            raise DetectionDomainError("done must be above 0; a run that never happens is an honest Prover")
        if self.shares is not None:
            share("shares", self.shares)
            if abs(sum(self.shares) - 1) > _EXACT:
                raise DetectionDomainError("shares must sum to 1 over the holdings")

    def length(self, goal: Goal) -> float:
        """Returns the days from the run's first FLOP to its last."""
        whole_run = goal.days * self.stretch / (1 if self.sliced else self.spread)
        return whole_run * self.done


@dataclass(frozen=True)
class Crew:
    """Chips of one holding that work at the same time on a run.

    Attributes:
        holding: Number of their holding.
        chips: How many; whole unless a formula asked for fractions.
        start: When they begin, in days from the run's start.
        windows: When their snapshots incriminate, as (from, to).
        tampered: Whether they were tampered with; then they show no snapshots.
        leaves: When they leave the holding; infinity if they stay.
        goes_to: The holding that they go to, or OUTSIDE.
    """

    holding: int
    chips: float
    start: float
    windows: Windows
    tampered: bool = False
    leaves: float = float("inf")
    goes_to: int = OUTSIDE


def crews(
    strategy: Strategy, goal: Goal, holdings: tuple[Holding, ...], policy: Policy, *, whole_chips: bool = True
) -> tuple[Crew, ...]:
    """Returns who computes when.

    Args:
        strategy: What the Prover does.
        goal: The run.
        holdings: The fleet.
        policy: How it is inspected.
        whole_chips: Round the chips of each crew up; otherwise they may be fractions, as in equation 1.

    Raises:
        DetectionDomainError: Strategy and fleet do not fit each other.
        InfeasibleError: A holding has too few chips; the message says how many it would need.
    """
    if strategy.start_day >= policy.period_days:
        raise DetectionDomainError(f"start_day = {strategy.start_day:g} must be less than period_days")
    if strategy.honest:
        return ()
    shares = strategy.shares or (1.0, *(0.0 for _ in holdings[1:]))
    if len(shares) != len(holdings):
        raise DetectionDomainError(f"{len(shares)} shares for {len(holdings)} holdings; give one for each")
    if strategy.sell_to is not None and not OUTSIDE <= strategy.sell_to < len(holdings):
        raise DetectionDomainError(f"sell_to = {strategy.sell_to} is no holding; there are {len(holdings)}")
    stop = strategy.length(goal)
    slices = int(strategy.spread) if strategy.sliced else 1
    slice_days = stop / strategy.done / slices
    guilty = _incriminating(strategy, goal, policy, stop)
    found: list[Crew] = []
    for number, (part, holding) in enumerate(zip(shares, holdings, strict=True)):
        if part == 0:
            continue
        needed = part * goal.flops / (holding.chip_flops_per_day * slice_days * slices)
        count = float(np.ceil(needed * (1 - _EXACT))) if whole_chips else needed
        for index in range(slices):
            begin, end = index * slice_days, min(stop, (index + 1) * slice_days)
            if begin >= stop:
                break
            crew = Crew(number, count, begin, _clipped(guilty, begin, end))
            if strategy.sell_to is not None and strategy.sell_to != number:
                crew = replace(crew, leaves=end + strategy.sell_after_days, goes_to=strategy.sell_to)
            found += _with_tampering(crew, strategy.tampered, whole_chips)
    for number, holding in enumerate(holdings):
        # Chips that come in by a sale change places with chips that do nothing.
        working = sum(crew.chips for crew in found if number in (crew.holding, crew.goes_to))
        if working > holding.chips * (1 + _EXACT):
            raise InfeasibleError(
                f"holding {number} has {holding.chips} chips, and {np.ceil(working):.0f} of them would work on the run "
                "or be sold to it; raise days, chips or stretch, or lower spread"
            )
    return tuple(found)


def _incriminating(strategy: Strategy, goal: Goal, policy: Policy, stop: float) -> Windows:
    """Returns the times of the run whose snapshots incriminate."""
    planned = stop / strategy.done
    innocent = planned * min(1.0, goal.innocent_flops / goal.flops)
    piece = planned / strategy.pieces
    if policy.initialisation_checked:
        # The second piece's weights have no honest origin, so that it incriminates at once.
        return ((min(innocent, piece) if strategy.pieces > 1 else innocent, stop),)
    # Each piece is taken for a run of its own, innocent until it has done H.
    return tuple((index * piece + innocent, (index + 1) * piece) for index in range(strategy.pieces))


def _clipped(windows: Windows, begin: float, end: float) -> Windows:
    cut = ((max(begin, first), min(end, last)) for first, last in windows)
    return tuple((first, last) for first, last in cut if first < last)


def _with_tampering(crew: Crew, part: float, whole_chips: bool) -> list[Crew]:
    touched = float(np.rint(crew.chips * part)) if whole_chips else crew.chips * part
    parts = [replace(crew, chips=crew.chips - touched), replace(crew, chips=touched, tampered=True)]
    return [each for each in parts if each.chips > 0]


def cycle_days(strategy: Strategy, goal: Goal, policy: Policy) -> float:
    """Returns the days from an inspection before the run to the last one that is in time for it.

    That is the first that does not come before the run's end, or with `within_days` the last one within those.
    """
    end = strategy.start_day + (goal.days if strategy.honest else strategy.length(goal))
    if policy.within_days is None:
        periods = max(1.0, np.ceil(end / policy.period_days * (1 - _EXACT)))
    else:
        periods = np.floor((end + policy.within_days) / policy.period_days * (1 + _EXACT))
    return float(periods * policy.period_days)


def described(strategy: Strategy) -> str:
    """Returns a strategy's knobs that are not at their defaults, in one line."""
    parts = []
    for field in fields(strategy):
        value = getattr(strategy, field.name)
        if value != field.default:
            shown = value
            if field.name == "sell_to":
                shown = "nobody known" if value == OUTSIDE else f"holding {value}"
            elif isinstance(value, tuple):
                shown = "/".join(f"{part:.1%}" for part in value)
            elif isinstance(value, float):
                shown = f"{value:.4g}"
            parts.append(f"{field.name.replace('_', ' ')} {shown}")
    return ", ".join(parts) or "nothing"
