"""`weighbridge analysis simulate` and `attack`: fleets played out, and the Prover who chooses best."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json
from weighbridge.cli.analysis import options as shared
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from analysis.simulated_fleet import Outcome
    from analysis.strategies import Goal, Holding, Policy, Strategy

_KEYS = ("chips", "chip-flops", "samples", "share", "logs")
_NOBODY = "nobody"

Chips = Annotated[float | None, typer.Option("--chips", help="Number of chips (C), if there is but one holding.")]
Samples = Annotated[
    float | None, typer.Option("--samples", help="Chips drawn each period (s), from all holdings together.")
]
Holdings = Annotated[
    list[str] | None,
    typer.Option(
        "--holding",
        help="chips=N[,chip-flops=X][,samples=S][,share=P][,logs=no], repeated, instead of --chips: the chips of one "
        "Prover or kind, how many of them are drawn, and their share of the run.",
    ),
]
Innocent = Annotated[
    float,
    typer.Option("--innocent-flops", help="FLOPs of the run before its snapshots incriminate (H of the 2H rule)."),
]
Within = Annotated[
    float | None,
    typer.Option(
        "--within-days", help="Days after a run's end in which finding it counts; default: up to the next inspection."
    ),
]
ReplayMissed = Annotated[float, typer.Option("--replay-missed", help="Chance that a chip's snapshots wrongly pass.")]
TamperingMissed = Annotated[float, typer.Option("--tampering-missed", help="Chance that tampering is not noticed.")]
LossExcused = Annotated[float, typer.Option("--loss-excused", help="Chance that a missing chip is believed lost.")]
SwapHidden = Annotated[
    float, typer.Option("--swap-hidden", help="Chance that weights can be swapped out before a snapshot.")
]
Soundness = Annotated[float, typer.Option("--soundness-error", help="Chance that a run's transcript fools replay.")]
Unchecked = Annotated[
    bool, typer.Option("--unchecked-initialisation", help="Runs need not start from seeded random weights.")
]
Trials = Annotated[int, typer.Option("--trials", help="Histories that are played out.")]
Seed = Annotated[int, typer.Option("--seed", help="Of all randomness; the same seed gives the same answer.")]
Workers = Annotated[int | None, typer.Option("--workers", help="Threads; default: one for each core.")]
Confidence = Annotated[float, typer.Option("--confidence", help="Of the intervals.")]


def simulate(
    flops: shared.Flops,
    chips: Chips = None,
    samples: Samples = None,
    holdings: Holdings = None,
    period: shared.Period = 30.0,
    rate: shared.Rate = 0.1,
    chip_flops: shared.ChipFlops = 1e15,
    run_days: shared.RunDays = None,
    innocent: Innocent = 0.0,
    honest: Annotated[bool, typer.Option("--honest", help="There is no run; what is found is false alarms.")] = False,
    stretch: Annotated[float, typer.Option("--stretch", help="As many times longer on fewer chips.")] = 1.0,
    spread: Annotated[float, typer.Option("--spread", help="As many times more chips for a shorter time each.")] = 1.0,
    sliced: Annotated[bool, typer.Option("--sliced", help="Those chips one after the other.")] = False,
    split: Annotated[int, typer.Option("--split", help="Reported as so many runs.")] = 1,
    sell_to: Annotated[
        str | None, typer.Option("--sell-to", help="Sell the chips afterwards: to a holding (1, 2, ...) or nobody.")
    ] = None,
    sell_after: Annotated[float, typer.Option("--sell-after-days", help="Days until then.")] = 0.0,
    swap: Annotated[bool, typer.Option("--swap", help="Try to swap weights out before snapshots.")] = False,
    stop_at: Annotated[float, typer.Option("--stop-at", help="Fraction of the run after which it stops.")] = 1.0,
    tampered: Annotated[float, typer.Option("--tampered", help="Fraction of its chips tampered with.")] = 0.0,
    start_day: Annotated[float, typer.Option("--start-day", help="Days from an inspection to the run's start.")] = 0.0,
    within: Within = None,
    replay_missed: ReplayMissed = 0.0,
    tampering_missed: TamperingMissed = 0.0,
    loss_excused: LossExcused = 0.0,
    swap_hidden: SwapHidden = 0.0,
    soundness: Soundness = 0.0,
    false_alarm: Annotated[float, typer.Option("--false-alarm", help="Chance that an honest chip alarms.")] = 0.0,
    unchecked: Unchecked = False,
    withheld: shared.Withheld = 0,
    replacement: Annotated[bool, typer.Option("--replacement", help="Draw with replacement.")] = False,
    stop_at_first: Annotated[
        bool, typer.Option("--stop-at-first", help="Count chips inspected up to the first finding of each inspection.")
    ] = False,
    years: Annotated[float | None, typer.Option("--years", help="Runs follow each other for so long.")] = None,
    trials: Trials = 10_000,
    seed: Seed = 0,
    workers: Workers = None,
    confidence: Confidence = 0.95,
    as_json: Json = False,
) -> None:
    """Plays inspections out and counts how often the run is found, beside what the formula says."""
    from analysis.costs import DAYS_PER_YEAR
    from analysis.strategies import Strategy

    with shared.domain_errors():
        fleet, shares, drawn = _fleet(chips, samples, holdings, chip_flops)
        policy = _policy(
            drawn, period, rate, within, replay_missed, tampering_missed, loss_excused, swap_hidden, soundness,
            unchecked, false_alarm, replacement, withheld,
        )  # fmt: skip
        goal = _goal(flops, run_days, period, innocent)
        strategy = Strategy(
            honest=honest, stretch=stretch, spread=spread, sliced=sliced, pieces=split, shares=shares,
            sell_to=_buyer(sell_to, len(fleet)), sell_after_days=sell_after, swap=swap, done=stop_at,
            tampered=tampered, start_day=start_day,
        )  # fmt: skip
        outcome = _played(
            fleet, policy, goal, strategy, trials, seed, workers, as_json,
            None if years is None else years * DAYS_PER_YEAR, stop_at_first,
        )  # fmt: skip
        answer = _answer(outcome, fleet, policy, goal, strategy, confidence)
        answer["inspected"] = asdict(outcome.inspected_chips(confidence)) if stop_at_first else None
    if as_json:
        print_json(answer | {"trials": trials, "seed": seed})
        return
    print(f"{trials} histories of {outcome.inspections} inspections, {outcome.drawn} chips drawn in each")
    names = {
        "detection": "found in time", "ever": "found in the end", "fraction_done": "done when found",
        "accused": "histories with a false alarm", "inspected": "chips inspected",
    }  # fmt: skip
    for key, text in names.items():
        if answer[key] is not None:
            print(f"{text}: {_said(answer[key])}")
    if answer["formula"] is not None:
        print(f"by the formula: {answer['formula']:.6g}")


def attack(
    flops: shared.Flops,
    longest: Annotated[float, typer.Option("--longest-days", help="Days that the run may take at most.")],
    chips: Chips = None,
    samples: Samples = None,
    holdings: Holdings = None,
    period: shared.Period = 30.0,
    rate: shared.Rate = 0.1,
    chip_flops: shared.ChipFlops = 1e15,
    run_days: shared.RunDays = None,
    innocent: Innocent = 0.0,
    done: Annotated[float, typer.Option("--stop-at", help="Fraction of the run that must be done.")] = 1.0,
    within: Within = None,
    replay_missed: ReplayMissed = 0.0,
    tampering_missed: TamperingMissed = 0.0,
    loss_excused: LossExcused = 0.0,
    swap_hidden: SwapHidden = 0.0,
    soundness: Soundness = 0.0,
    unchecked: Unchecked = False,
    withheld: shared.Withheld = 0,
    answer_: Annotated[
        float | None,
        typer.Option(
            "--samples-per-year", help="Instead of samples: find the period and samples that do best for so many."
        ),
    ] = None,
    trials: Trials = 10_000,
    seed: Seed = 0,
    workers: Workers = None,
    confidence: Confidence = 0.95,
    as_json: Json = False,
) -> None:
    """What a Prover who knows the policy does best to hide a run; or the best policy against such a Prover."""
    from rich.console import Console

    from analysis import attack as game
    from analysis.strategies import described

    quiet: AbstractContextManager[Any] = nullcontext()
    with shared.domain_errors(), quiet if as_json else Console(stderr=True).status("searching"):
        if answer_ is not None and (samples is not None or any("samples" in text for text in holdings or [])):
            raise UsageError("give samples or --samples-per-year, not both", code="usage.fleet")
        fleet, shares, drawn = _fleet(chips, 0 if answer_ is not None else samples, holdings, chip_flops)
        if shares is not None:
            raise UsageError("the attacker chooses the shares; leave share= out of --holding", code="usage.fleet")
        policy = _policy(
            drawn,
            period,
            rate,
            within,
            replay_missed,
            tampering_missed,
            loss_excused,
            swap_hidden,
            soundness,
            unchecked,
            withheld=withheld,
        )
        goal = _goal(flops, run_days, period, innocent)
        tried: tuple[tuple[float, tuple[int, ...], float], ...] = ()
        if answer_ is not None:
            defence = game.best_policy(
                holdings=fleet, policy=policy, goal=goal, longest_days=longest, samples_per_year=answer_, done=done
            )
            policy, found, tried = defence.policy, defence.attack, defence.tried
        else:
            found = game.best_strategy(holdings=fleet, policy=policy, goal=goal, longest_days=longest, done=done)
    with shared.domain_errors():
        outcome = _played(fleet, policy, goal, found.strategy, trials, seed, workers, as_json)
        simulated = outcome.detected(confidence)
    alone = {name: value for name, (_, value) in found.alone.items()}
    if as_json:
        print_json(
            {
                "strategy": asdict(found.strategy),
                "detection_probability": found.probability,
                "without_hiding": found.plain,
                "each_move_alone": {name: _number(value) for name, value in alone.items()},
                "simulated": asdict(simulated),
                "period_days": policy.period_days,
                "samples": policy.samples,
                "periods_tried": [
                    {"period_days": days, "samples": split, "detection_probability": value}
                    for days, split, value in tried
                ],
            }
        )
        return
    for days, split, value in tried:
        print(f"every {days:g} days {'/'.join(map(str, split))} chips: p = {value:.6g} at worst")
    print(f"p = {found.probability:.6g} at worst; simulated: {_said(asdict(simulated))}; unhidden: {found.plain:.6g}")
    print(f"the best strategy: {described(found.strategy)}")
    useful = {name: value for name, value in alone.items() if value < found.plain - 1e-6}
    print("each move alone: " + (", ".join(f"{name} {value:.6g}" for name, value in useful.items()) or "none helps"))


def _fleet(
    chips: float | None, samples: float | None, texts: list[str] | None, chip_flops: float
) -> tuple[tuple[Holding, ...], tuple[float, ...] | None, int | tuple[int, ...]]:
    """Returns the holdings, their shares of the run if given, and what is drawn."""
    from analysis.domain import positive, whole
    from analysis.strategies import Holding

    speed = float(positive("chip_flops", chip_flops, "FLOP/s"))
    if (chips is None) == (not texts):
        raise UsageError("give --chips, or --holding for each Prover or kind of chip, not both", code="usage.fleet")
    if chips is not None:
        texts = [f"chips={chips!r}"]
    parsed = [_holding(text) for text in texts or []]
    fleet = tuple(
        Holding(
            chips=int(whole("chips", values["chips"], 1)),
            chip_flops_per_day=float(positive("chip-flops", values.get("chip-flops", speed), "FLOP/s"))
            * shared.SECONDS_PER_DAY,
            logs=values.get("logs") != "no",
        )
        for values in parsed
    )
    apart = ["samples" in values for values in parsed]
    if any(apart) == (samples is not None) or (any(apart) and not all(apart)):
        raise UsageError("give --samples, or samples= for every --holding, not both", code="usage.fleet")
    drawn: int | tuple[int, ...] = (
        int(whole("samples", samples, 0))
        if samples is not None
        else tuple(int(whole("samples", values["samples"], 0)) for values in parsed)
    )
    shares = tuple(float(values.get("share", 0.0)) for values in parsed)
    return fleet, shares if any("share" in values for values in parsed) else None, drawn


def _holding(text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        try:
            if key not in _KEYS or not equals or key in values:
                raise ValueError
            if key == "logs":
                values[key] = {"no": "no", "yes": "yes"}[value]
            else:
                values[key] = float(value)
        except (ValueError, KeyError):
            raise UsageError(
                f"--holding {text!r:.80} is not chips=N[,chip-flops=X][,samples=S][,share=P][,logs=no]",
                code="usage.fleet",
            ) from None
    if "chips" not in values:
        raise UsageError(f"--holding {text!r:.80} does not say how many chips it has", code="usage.fleet")
    return values


def _buyer(text: str | None, holdings: int) -> int | None:
    from analysis.strategies import OUTSIDE

    if text is None:
        return None
    if text == _NOBODY:
        return OUTSIDE
    if text.isdecimal() and 1 <= int(text) <= holdings:
        return int(text) - 1
    raise UsageError(f"--sell-to {text!r:.80} is no holding from 1 to {holdings}, nor nobody", code="usage.fleet")


def _policy(
    drawn: int | tuple[int, ...],
    period: float,
    rate: float,
    within: float | None,
    replay_missed: float,
    tampering_missed: float,
    loss_excused: float,
    swap_hidden: float,
    soundness: float,
    unchecked: bool,
    false_alarm: float = 0.0,
    replacement: bool = False,
    withheld: int = 0,
) -> Policy:
    from analysis.strategies import Policy

    return Policy(
        samples=drawn,
        period_days=period,
        snapshot_rate_per_day=rate,
        within_days=within,
        replacement=replacement,
        replay_missed=replay_missed,
        tampering_missed=tampering_missed,
        loss_excused=loss_excused,
        swap_hidden=swap_hidden,
        soundness_error=soundness,
        false_alarm=false_alarm,
        withheld=withheld,
        initialisation_checked=not unchecked,
    )


def _goal(flops: float, run_days: float | None, period: float, innocent: float) -> Goal:
    from analysis.strategies import Goal

    return Goal(flops=flops, days=period if run_days is None else run_days, innocent_flops=innocent)


def _played(
    fleet: tuple[Holding, ...],
    policy: Policy,
    goal: Goal,
    strategy: Strategy,
    trials: int,
    seed: int,
    workers: int | None,
    quiet: bool,
    horizon_days: float | None = None,
    stop_at_first: bool = False,
) -> Outcome:
    """Simulates, with a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from analysis.simulated_fleet import simulate as simulated

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    context: AbstractContextManager[Any] = nullcontext() if quiet else bars
    with context:
        bar = bars.add_task("histories", total=trials)
        return simulated(
            holdings=fleet,
            policy=policy,
            goal=goal,
            strategy=strategy,
            trials=trials,
            seed=seed,
            horizon_days=horizon_days,
            stop_at_first=stop_at_first,
            workers=workers if workers is not None else os.cpu_count() or 1,
            progress=lambda done: bars.advance(bar, done),
        )


def _answer(
    outcome: Outcome,
    fleet: tuple[Holding, ...],
    policy: Policy,
    goal: Goal,
    strategy: Strategy,
    confidence: float,
) -> dict[str, Any]:
    from analysis.attack import found_probability

    runs = outcome.found_after.size
    formula = None
    if runs:
        formula = found_probability(holdings=fleet, policy=policy, goal=goal, strategy=strategy)
    return {
        "detection": asdict(outcome.detected(confidence)) if runs else None,
        "ever": asdict(outcome.ever_detected(confidence)) if runs else None,
        "fraction_done": asdict(outcome.fraction_done(confidence)) if runs > 1 else None,
        "accused": asdict(outcome.accused(confidence)) if policy.false_alarm or not runs else None,
        "formula": formula,
        "inspections": outcome.inspections,
        "drawn": outcome.drawn,
        "runs": runs,
    }


def _said(values: dict[str, Any]) -> str:
    return f"{values['value']:.4g} [{values['low']:.4g}, {values['high']:.4g}]"


def _number(value: float) -> float | None:
    """JSON has no infinity; a move that cannot be made has no probability."""
    return value if value <= 1 else None
