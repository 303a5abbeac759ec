"""Undeclared training on a real chip whose power goes whenever it wants to look."""

from __future__ import annotations

from random import Random

from redteam.on_chips import HIDDEN_RUN, Undeclared
from redteam.row import Outcome, Row
from redteam.workshop import Workshop, accusations
from support.doomed_chip import Nursery
from support.power_cuts import PowerCuts, cut_after, set_back
from support.station import Station

from firmware_sim import Shim

PER_SECOND = 4.0
MOMENTS = range(3, 12)
"""Times that a chip has touched its store when the power goes: from when the workload knows of an interrupt."""
CUTS = 6


def unseen(shop: Workshop, name: str, trained: Undeclared) -> Outcome:
    """What an inspection of a chip says that was cut before each snapshot."""
    shop.bench.register(name)
    report = shop.report(name)
    gain = float(trained.steps > 0 and not report["chips"][0]["snapshots"])
    return Outcome(findings=accusations(report), gain=gain, cost=1.0)


def at_every_interrupt(shop: Workshop, seed: int) -> Outcome:
    """Trains until an interrupt is raised, and then the power goes and the chip's memory is set back; and again."""
    name, training = shop.name(), Undeclared(seed)
    process = shop.bench.chip(name, clock_speed=86_400.0 * PER_SECOND, hold=4096)

    def work(shim: Shim) -> None:
        while not shim.pending:
            training.step()

    for _ in range(Random(seed).randint(4, 6)):
        cut_after(process, shop.bench.root / "chips" / name, work, older=True)
    return unseen(shop, name, training)


def twice(shop: Workshop, seed: int) -> Outcome:
    """At a low rate of interrupts there are two, and both times the power goes; nothing else is wrong with the chip."""
    name, training, choose = shop.name(), Undeclared(seed), Random(seed)
    process = shop.bench.chip(name, rate_per_day=1.0)

    def work(shim: Shim) -> None:
        for _ in range(choose.randint(1, 20)):
            training.step()
        shim.request_snapshot()

    for _ in range(2):
        cut_after(process, shop.bench.root / "chips" / name, work, older=False)
    return unseen(shop, name, training)


def at_a_write(shop: Workshop, seed: int) -> Outcome:
    """The power goes right before some write between an interrupt and its snapshot, and the memory is set back."""
    station: Station = shop.bench
    name, place = shop.name(), shop.place()
    station.chip(name).stop()
    home = station.root / "chips" / name
    moments = Random(seed).sample(MOMENTS, CUTS)
    announced = 0
    with Nursery() as nursery:
        power = PowerCuts(place, station.root / "chip", nursery)
        for touches in moments:
            announced += power.cut(home, touches, rate_per_day=1.0).announced
            set_back(home)
    station.chips[name].start()
    station.register(name)
    report = shop.report(name)
    told = report["chips"][0]["interrupts"]
    traces = told["snapshots"] + told["unserved"]
    return Outcome(findings=accusations(report), gain=max(0, announced - traces) / CUTS, cost=0.0)


BY_POWER = "attacks on chips' power"

ROWS = (
    Row(
        name="the power goes at every interrupt, and an older image of the chip's memory is put back",
        source=BY_POWER,
        wants=HIDDEN_RUN,
        gains="1 if the run was made and no snapshot shows it",
        attack=at_every_interrupt,
        expected=("chip.interrupt.unserved",),
        note="An interrupt is durable before the workload hears of it, in a store that no image restores.",
    ),
    Row(
        name="the power goes at two interrupts, and never else",
        source=BY_POWER,
        wants=HIDDEN_RUN,
        gains="1 if the run was made and no snapshot shows it",
        attack=twice,
        expected=("chip.reboot.timed",),
        note="At one interrupt a day, two reboots of two fall on one by chance less than once in a million.",
    ),
    Row(
        name="the power goes at a write between an interrupt and its snapshot, and an older image is put back",
        source=BY_POWER,
        wants=HIDDEN_RUN,
        gains="the share of the cuts after which an interrupt that the workload knew of was in no entry",
        attack=at_a_write,
        expected=("chip.interrupt.unserved", "chip.reboot.timed"),
        least=0.0,
        most=0.0,
        note=f"{CUTS} of the moments at which the chip makes something durable, one after another on one chip. "
        "A test tries every one of them.",
    ),
)
