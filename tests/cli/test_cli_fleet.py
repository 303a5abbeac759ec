"""`weighbridge analysis simulate` and `attack`: the library's answers, under the keys that programs read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command_line import answer

from analysis.attack import best_strategy
from analysis.simulated_fleet import simulate
from analysis.strategies import OUTSIDE, Goal, Holding, Policy, Strategy
from weighbridge.cli.analysis.fleets import _holding
from weighbridge.cli.main import run
from weighbridge.core.errors import UsageError

FLEET = ["--chips", "1e4", "--flops", "5.76e23"]
DAY = 86400e15


def test_a_simulation_is_the_librarys() -> None:
    found = answer(
        "analysis", "simulate", *FLEET, "--samples", "100", "--trials", "4000", "--seed", "5", "--workers", "1"
    )
    played = simulate(
        holdings=(Holding(10_000, DAY),), policy=Policy(100, 30.0, 0.1), goal=Goal(5.76e23, 30.0), strategy=Strategy(),
        trials=4000, seed=5,
    )  # fmt: skip
    assert found["detection"] == vars(played.detected())
    assert found["detection"]["low"] <= found["formula"] <= found["detection"]["high"]
    assert (found["runs"], found["inspections"], found["drawn"], found["trials"]) == (4000, 1, 100, 4000)
    assert found["accused"] is None


def test_moves_and_weaknesses_reach_the_library() -> None:
    """Every option once; the same seed gives the same outcome as the library's own objects."""
    found = answer(
        "analysis", "simulate", "--flops", "5.76e23", "--holding", "chips=6000,samples=60,share=0.6",
        "--holding", "chips=4000,chip-flops=2e15,samples=40,share=0.4", "--run-days", "25", "--period-days", "20",
        "--rate", "0.2", "--innocent-flops", "1e23", "--stretch", "1.5", "--spread", "2", "--sliced", "--split", "2",
        "--sell-to", "nobody", "--sell-after-days", "2", "--swap", "--stop-at", "0.9", "--tampered", "0.25",
        "--start-day", "3", "--within-days", "30", "--replay-missed", "0.1", "--tampering-missed", "0.5",
        "--loss-excused", "0.4", "--swap-hidden", "0.3", "--soundness-error", "0.05", "--false-alarm", "0.001",
        "--unchecked-initialisation", "--years", "1", "--trials", "300", "--seed", "9", "--confidence", "0.8",
    )  # fmt: skip
    played = simulate(
        holdings=(Holding(6000, DAY), Holding(4000, 2 * DAY)),
        policy=Policy(
            samples=(60, 40), period_days=20.0, snapshot_rate_per_day=0.2, within_days=30.0, replay_missed=0.1,
            tampering_missed=0.5, loss_excused=0.4, swap_hidden=0.3, soundness_error=0.05, false_alarm=0.001,
            initialisation_checked=False,
        ),
        goal=Goal(5.76e23, 25.0, 1e23),
        strategy=Strategy(
            stretch=1.5, spread=2.0, sliced=True, pieces=2, shares=(0.6, 0.4), sell_to=OUTSIDE, sell_after_days=2.0,
            swap=True, done=0.9, tampered=0.25, start_day=3.0,
        ),
        trials=300, seed=9, horizon_days=365.0,
    )  # fmt: skip
    assert found["detection"] == vars(played.detected(0.8))
    assert found["accused"] == vars(played.accused(0.8))
    assert found["fraction_done"] == vars(played.fraction_done(0.8))
    assert found["runs"] == played.found_after.size > 300


def test_an_honest_prover(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer("analysis", "simulate", *FLEET, "--samples", "10", "--honest", "--years", "1", "--trials", "50")
    assert (found["detection"], found["formula"], found["runs"]) == (None, None, 0)
    assert found["accused"]["value"] == 0
    assert found["inspections"] == 12
    assert run(["analysis", "simulate", *FLEET, "--samples", "10", "--honest", "--trials", "50"]) == 0
    assert "false alarm: 0 [0, " in capsys.readouterr().out


def test_stopping_at_the_first_finding() -> None:
    found = answer("analysis", "simulate", *FLEET, "--samples", "100", "--stop-at-first", "--trials", "500")
    assert found["inspected"]["high"] < 60 < found["drawn"]


@given(st.text(max_size=30) | st.text("chips=,0123456789.einfa-", max_size=30))
def test_any_text_is_a_holding_or_one_error(text: str) -> None:
    """Hostile text raises only UsageError; what is accepted has a number for each key but one."""
    try:
        values = _holding(text)
    except UsageError:
        return
    assert all(isinstance(value, float) or key == "logs" for key, value in values.items())


def test_the_best_attack(capsys: pytest.CaptureFixture[str]) -> None:
    weak = ["--tampering-missed", "0.6", "--longest-days", "60"]
    found = answer("analysis", "attack", *FLEET, "--samples", "90", *weak, "--trials", "4000")
    policy = Policy(90, 30.0, 0.1, tampering_missed=0.6)
    said = best_strategy(holdings=(Holding(10_000, DAY),), policy=policy, goal=Goal(5.76e23, 30.0), longest_days=60.0)
    assert found["strategy"]["tampered"] == said.strategy.tampered == 1.0
    assert found["detection_probability"] == said.probability < found["without_hiding"]
    assert found["simulated"]["low"] - 0.01 <= said.probability <= found["simulated"]["high"] + 0.01
    assert set(found["each_move_alone"]) >= {"stretch", "spread", "split", "collude", "resell", "swap", "tamper"}
    assert run(["analysis", "attack", *FLEET, "--samples", "90", *weak, "--trials", "100"]) == 0
    assert "tampered 1" in capsys.readouterr().out


def test_the_best_policy() -> None:
    found = answer(
        "analysis", "attack", *FLEET, "--longest-days", "30", "--samples-per-year", "1200", "--within-days", "45",
        "--trials", "2000",
    )  # fmt: skip
    tried = found["periods_tried"]
    assert [each["period_days"] for each in tried] == [30.0, 15.0, 7.5, 3.75]
    assert found["detection_probability"] == max(each["detection_probability"] for each in tried)
    assert found["samples"][0] * 365 / found["period_days"] <= 1200


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["simulate", *FLEET], "--samples"),
        (["simulate", "--flops", "1e23", "--samples", "5"], "--chips, or --holding"),
        (["simulate", *FLEET, "--samples", "5", "--holding", "chips=5"], "--chips, or --holding"),
        (["simulate", "--flops", "1e23", "--holding", "chips=1e4,samples=5", "--samples", "5"], "not both"),
        (["simulate", "--flops", "1e23", "--holding", "chips"], "--holding 'chips'"),
        (["simulate", "--flops", "1e23", "--holding", "samples=5"], "how many chips"),
        (["simulate", "--flops", "1e23", "--holding", "chips=5,logs=maybe", "--samples", "1"], "--holding"),
        (["simulate", *FLEET, "--samples", "2e4"], "lower samples"),
        (["simulate", *FLEET, "--samples", "1.5"], "samples"),
        (["simulate", *FLEET, "--samples", "nan"], "samples"),
        (["simulate", *FLEET, "--samples", "5", "--sell-to", "2"], "--sell-to"),
        (["simulate", *FLEET, "--samples", "5", "--trials", "0"], "trials"),
        (["simulate", *FLEET, "--samples", "5", "--stretch", "0.5"], "stretch"),
        (["simulate", *FLEET, "--samples", "5", "--years", "0.01"], "horizon_days"),
        (["simulate", *FLEET, "--samples", "5", "--confidence", "1"], "confidence"),
        (["simulate", *FLEET, "--samples", "5", "--replay-missed", "2"], "replay_missed"),
        (["simulate", "--chips", "10", "--flops", "5.76e23", "--samples", "5"], "223 of them"),
        (["attack", *FLEET, "--samples", "5", "--longest-days", "3"], "longest_days"),
        (["attack", *FLEET, "--samples", "5", "--samples-per-year", "9", "--longest-days", "30"], "not both"),
        (
            ["attack", "--flops", "1e23", "--holding", "chips=9e3,samples=5,share=1", "--longest-days", "30"],
            "chooses the shares",
        ),
    ],
)
def test_bad_input_gives_one_clear_error(capsys: pytest.CaptureFixture[str], arguments: list[str], text: str) -> None:
    assert run(["analysis", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.strip().splitlines()
    assert text in line
