"""Attacks on chips' logs, keys and firmware: false chips with genuine devices, and copies of real ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from redteam.on_chips import HIDDEN_RUN, cheat, hidden
from redteam.row import Outcome, Row
from redteam.workshop import Training, Workshop, accusations, digits
from support.false_chips import FalseChips, Shown
from support.station import Station

from firmware_sim import Shim
from firmware_sim.device import builtin_image, unlock
from weighbridge.attest.firmware_image import FirmwareSigner
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import ChipError

Tamper = Callable[[Shown, int], None]
"""Hides the snapshot at a place of a log."""


def held_back(shown: Shown, place: int) -> None:
    """The snapshot and what came after it are not listed."""
    shown.entries = shown.log.entries[:place]


def dropped(shown: Shown, place: int) -> None:
    """The snapshot is taken out of the log, with the chip's own key."""
    del shown.log.entries[place]


def restored(shown: Shown, place: int) -> None:
    """The log is that of a backup from before the snapshot; the chip's counter is not."""
    more = len(shown.log.entries)
    del shown.log.entries[place:]
    shown.head = lambda nonce: shown.log.head(nonce, counter=more)


def hiding(tamper: Tamper, shop: Workshop, seed: int) -> Outcome:
    """A log with a snapshot of a hidden run, which is not to be seen; the seed chooses what it is and where it lies."""
    name, choose = shop.name(), Random(seed)
    with FalseChips(shop.bench) as chips:
        shown = chips.make(name)
        for number in range(choose.randrange(6)):
            shown.log.event(f"before {number}", choose.randbytes(32))
        leaves = [(4096 * size, choose.randbytes(32)) for size in range(1, choose.randint(2, 5))]
        snapshot = shown.log.snapshot(leaves)
        for number in range(choose.randint(1, 6)):
            shown.log.event(f"after {number}", choose.randbytes(32))
        genuine = shown.log.entries[snapshot]
        tamper(shown, snapshot)
        listed = shown.log.entries if shown.entries is None else shown.entries
        report = shop.report(name)
    gone = genuine not in listed
    return Outcome(findings=accusations(report), gain=float(gone), cost=0.0)


def altered_firmware(shop: Workshop, seed: int) -> Outcome:
    """A chip is unlocked, boots firmware of the Prover's own, trains, and has the right one back before it is seen."""
    station, name = shop.bench, shop.name()
    process = station.chip(name)
    directory = station.root / "chips" / name
    for _ in range(Random(seed).randrange(3)):  # boots as it should
        process.stop()
        process.start()
    process.stop()
    evil = replace(builtin_image(), payload=Random(seed).randbytes(1 << 10))
    (directory / "firmware.img").write_bytes(FirmwareSigner.issue(station.authority).sign(evil))
    try:
        process.start()
    except ChipError:
        unlock(directory)
        process.start()
    with Shim.connect(process.socket) as chip:
        done = hidden(chip, seed)
    process.stop()
    (directory / "firmware.img").write_bytes(station.image)
    process.start()
    station.register(name, "")
    return Outcome(findings=accusations(shop.report(name)), gain=float(done > 0), cost=1.0)


def copied_key(shop: Workshop, seed: int) -> Outcome:
    """A chip's secret is copied into a second box; the copy answers for it while the chip trains."""
    station: Station = shop.bench
    genuine, copy = shop.name(), shop.name()
    for name in (genuine, copy):
        process = station.chip(name)
        for number in range(Random(seed).randrange(3)):  # what both have in their logs
            with Shim.connect(process.socket) as chip:
                chip.log_event("before", bytes_digest(bytes([number])))
        process.stop()
    one, two = station.root / "chips" / genuine, station.root / "chips" / copy
    shutil.rmtree(two)
    shutil.copytree(one, two)
    for name in (genuine, copy):
        station.chips[name].start()
        station.register(name, "")
    with Shim.connect(station.chips[genuine].socket) as chip:
        done = hidden(chip, seed)
    return Outcome(findings=accusations(shop.report(genuine, copy)), gain=float(done > 0), cost=1.0)


def forged_history(shop: Workshop, seed: int) -> Outcome:
    """With a chip's key, an honest run's log is made up for a chip that did something else; it was never seen before.

    A backdoor in firmware that the manufacturer signed, and a fault put in on the way from the fab, come to the same:
    what the chip signs is what the adversary wants.
    """
    run = shop.record(Training(batches=digits(seed, 3)), seed)
    chip = shop.bench.at_end(run.path)  # signed with the device's key; no training ever ran there
    return Outcome(findings=shop.accused(run.path, chip), gain=1.0, cost=0.0)


HIDE = "hide a snapshot of an undeclared run"
GONE = "1 if the snapshot is not in what the Verifier is shown"
SHOWN = "1 if the log is what the adversary wants"

ROWS = (
    Row(
        name="a log made up with a chip's key, or by firmware with a backdoor",
        source="Shavit 2023, cheats 4, 5 and 17",
        wants="show an honest log for a chip that did other work",
        gains=SHOWN,
        attack=forged_history,
        note="Chips are trusted to keep their keys; colluding manufacturers and supply chains are outside of the "
        "threat model. A copied key is found once both histories are seen.",
    ),
    *(
        Row(
            name=name,
            source=cheat(2),
            wants=HIDE,
            gains=GONE,
            attack=partial(hiding, tamper),
            expected=(expected,),
        )
        for name, tamper, expected in (
            ("the newest log entries are held back", held_back, "chip.log.incomplete"),
            ("a log entry is taken out", dropped, "chip.log.counter"),
            ("a chip's log is restored from a backup", restored, "chip.log.rolled_back"),
        )
    ),
    Row(
        name="own firmware, replaced before the inspection",
        source=cheat(3),
        wants=HIDDEN_RUN,
        gains="1 if the run was made",
        attack=altered_firmware,
        expected=("chip.firmware.debug", "chip.firmware.unknown"),
    ),
    Row(
        name="a copy of a chip's secret answers for it",
        source=cheat(5),
        wants=HIDDEN_RUN,
        gains="1 if the run was made",
        attack=copied_key,
        expected=("chip.log.fork",),
        chips=1,
        note="Original and copy both have to be looked at; the column is for one chip that must be drawn.",
    ),
)
