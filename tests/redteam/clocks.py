"""Real chips with a slow clock, and genuine firmware that was started with options that keep snapshots away."""

from __future__ import annotations

import time
from functools import partial
from random import Random
from typing import Any

from redteam.on_chips import HIDDEN_RUN, Undeclared
from redteam.row import Outcome, Row
from redteam.workshop import USUAL, Workshop, accusations
from support.station import Station

from firmware_sim import Shim
from verifier.model.reference_values import ChipLimits, FirmwarePolicy

SLACK_S = 0.1
"""What the Verifier lets clocks differ by here; trainings of a second take the place of trainings of days."""
TRAINED_S = 20 * SLACK_S
MS_PER_DAY = 86_400_000


def inspected(shop: Workshop, name: str, period_s: float = 0.0, **limits: Any) -> dict[str, Any]:
    """The report on a chip under limits of the Verifier's own, and over a period other than the plan's, if named."""
    station = shop.bench
    images, root = [station.root / "firmware.img"], station.manufacturer.certificate
    policy = FirmwarePolicy.of(images, root, limits=ChipLimits(**limits))
    period = {"period_days": period_s / 86_400, "flops_threshold": period_s / 86_400} if period_s else {}
    return station.inspect(name, given={"firmware": policy}, **USUAL, **period)


def train_for(seconds: float, process: Any, training: Undeclared) -> None:
    """Trains on a chip for a while."""
    with Shim.connect(process.socket):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            training.step()


def slow(seed: int) -> float:
    """A share of its speed at which a clock is driven."""
    return 1 / Random(seed).randint(50, 200)


def passed(report: dict[str, Any], begun: float) -> float:
    """The share of the time since then that the chip's clock has not seen."""
    seen_s = report["chips"][0]["interrupts"]["uptime_days"] * MS_PER_DAY / 1000
    return 1 - seen_s / (time.monotonic() - begun)


def slowed(shop: Workshop, seed: int) -> Outcome:
    """The board drives the chip's clock slower, so interrupts are rare in an undeclared training."""
    name = shop.name()
    process, begun = shop.bench.chip(name, oscillator=slow(seed)), time.monotonic()
    train_for(TRAINED_S, process, Undeclared(seed))
    report = inspected(shop, name, forced=True, clock_slack_s=SLACK_S)
    return Outcome(findings=accusations(report), gain=passed(report, begun), cost=1.0)


def started_anew(shop: Workshop, seed: int) -> Outcome:
    """As `slowed`, but the chip is started anew right before each contact, and takes the host's time.

    The Verifier asks for contacts that prove half of the period, which lasts as long as the trainings.
    """
    station: Station = shop.bench
    name, training = shop.name(), Undeclared(seed)
    process, begun = station.chip(name, oscillator=slow(seed)), time.monotonic()
    found: set[str] = set()
    for _ in range(2):
        train_for(TRAINED_S, process, training)
        process.stop()
        process.start()
        station.register(name)
        report = inspected(shop, name, TRAINED_S, forced=True, clock_slack_s=SLACK_S, unproven_share=0.5)
        found |= accusations(report)
    told = report["chips"][0]["interrupts"]
    ledger = report["ledger"]["chips"][0]["ms"]
    if told["anchored_days"] or ledger["unexplained"] < 1000 * TRAINED_S or report["probability"]["proven"]["p"]:
        raise AssertionError((told, ledger))  # the time would pass for monitored
    return Outcome(findings=frozenset(found), gain=passed(report, begun), cost=1.0)


def patient(shop: Workshop, seed: int) -> Outcome:
    """An interrupt waits while a whole training is done, and then the power goes, as if nothing had been."""
    station: Station = shop.bench
    name, training, choose = shop.name(), Undeclared(seed), Random(seed)
    process, wanted = station.chip(name, hold=10 ** choose.randint(10, 12)), choose.randint(5000, 10_000)
    with Shim.connect(process.socket) as shim:
        shim.request_snapshot()
        while shim.kernels < wanted:
            training.step()
        waits = shim.pending
        process.kill()
    process.start()
    station.register(name)
    report = inspected(shop, name, forced=True)
    seen = bool(report["chips"][0]["snapshots"])
    return Outcome(findings=accusations(report), gain=float(waits and not seen), cost=1.0)


def started_with(options: dict[str, Any], limits: dict[str, Any], shop: Workshop, seed: int) -> Outcome:
    """An undeclared training on a chip that was started with an option; no interrupt comes by chance."""
    name, training = shop.name(), Undeclared(seed)
    process = shop.bench.chip(name, **options)
    with Shim.connect(process.socket) as shim:
        if options.get("allow_forced"):
            shim.request_snapshot()  # while there is nothing to see
    with Shim.connect(process.socket):
        for _ in range(Random(seed).randint(20, 60)):
            training.step()
    report = inspected(shop, name, **limits)
    found = accusations(report)
    return Outcome(findings=found, gain=float("snapshot.unexplained" not in found), cost=1.0)


UNSEEN = "the share of the time that the chip's clock did not see"
BY_CLOCK = "attacks on chips' clocks"
BY_OPTIONS = "attacks on the firmware's options"

ROWS = (
    Row(
        name="a slow clock, and a start of the chip right before each contact",
        source=BY_CLOCK,
        wants=HIDDEN_RUN,
        gains=UNSEEN,
        attack=started_anew,
        expected=("chip.time.unproven",),
        least=0.9,
        note="Under a Verifier that asks for contacts which prove half of the period (`--max-unproven 0.5`). Under one "
        "that asks for none nothing is found: a boot takes the host's time. Then p by proven time alone, which every "
        "report states beside p, is 0, and the ledger bounds the work in that time.",
    ),
    Row(
        name="a slow clock",
        source=BY_CLOCK,
        wants=HIDDEN_RUN,
        gains=UNSEEN,
        attack=slowed,
        expected=("chip.clock.behind",),
        least=0.9,
        note="At the first contact; a second one in the same boot proves it (`chip.clock.slow`).",
    ),
    Row(
        name="interrupts that wait for 10^10 kernels and more",
        source=BY_OPTIONS,
        wants=HIDDEN_RUN,
        gains="1 if the run was made and no snapshot shows it",
        attack=patient,
        expected=("chip.options.exceeded",),
        note="The option is in each boot's signed entry, and the Verifier has a limit of its own.",
    ),
    *(
        Row(
            name=name,
            source=BY_OPTIONS,
            wants=HIDDEN_RUN,
            gains="1 if the run was made and no snapshot shows it",
            attack=partial(started_with, options, limits),
            expected=("chip.options.exceeded",),
        )
        for name, options, limits in (
            (
                "firmware that is told to run its clock at a hundredth of the speed",
                {"clock_speed": 0.01, "allow_forced": False},
                {"clock_speed": 60.0},
            ),
            ("firmware that lets the workload ask for interrupts", {"allow_forced": True}, {"clock_speed": 60.0}),
        )
    ),
)
