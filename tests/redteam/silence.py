"""Chips that fall silent once the draw is known: exactly those that would show an undeclared run.

1,000 registered chips, 50 of which did the run; 60 are drawn, three of the 50 among them. What the report says its p is
worth afterwards is all that the adversary can hope for.
"""

from __future__ import annotations

from functools import partial
from itertools import count, pairwise
from random import Random

from redteam.on_chips import HIDDEN_RUN
from redteam.row import Outcome, Row
from redteam.workshop import Workshop, accusations
from support.false_chips import FalseChips
from support.written_chips import Bench

from verifier.model.seeded_draw import draw
from verifier.registry.csvfile import import_
from weighbridge.core.digests import bytes_digest

CHIPS, INVOLVED, DRAWN, HITS = 1000, 50, 60, 3
DAYS = 200.0
"""Days of the run, at a snapshot a chip and day: each chip of the run surely holds one."""
NOWHERE = "localhost:1"
"""An address at which nothing answers."""
WORTH = 0.352
"""Pr(J > 3); to call the three chips not drawn would say 0.951."""


def drawn_with_hits(seed: int) -> tuple[bytes, list[int], set[int]]:
    """A seed of a draw that meets as many chips of the run as we ask for, the places drawn, and those of the run."""
    involved = set(Random(seed).sample(range(CHIPS), INVOLVED))
    everybody = [place.to_bytes(2, "big") for place in range(CHIPS)]
    for number in count(seed * 1000):
        chosen = sorted(int.from_bytes(each, "big") for each in draw(everybody, DRAWN, number.to_bytes(16, "big")))
        if len(involved.intersection(chosen)) == HITS:
            return number.to_bytes(16, "big"), chosen, involved
    raise AssertionError("count never ends")


def others(devices: list[bytes], places: list[int]) -> list[bytes]:
    """Identities of chips that are never asked, between those of the devices, so that these have their places."""
    bounds = [-1, *places, CHIPS]
    gaps = [after - before - 1 for before, after in pairwise(bounds)]
    numbers = [int.from_bytes(each, "big") for each in devices]
    made = [numbers[0] - 1 - step for step in range(gaps[0])]
    for number, gap in zip(numbers, gaps[1:], strict=True):
        made += [number + 1 + step for step in range(gap)]
    return [number.to_bytes(17, "big") for number in made]


def withheld(plugged: bool, shop: Workshop, seed: int) -> Outcome:
    """The three hits are unplugged; or they are there, and the Prover that would have to explain them is not."""
    number, places, involved = drawn_with_hits(seed)
    with Bench(shop.place()) as bench, FalseChips(bench) as chips:
        names = [f"chip {place}" for place in range(DRAWN)]
        shown = sorted((chips.make(name) for name in names), key=lambda each: each.log.device.ueid)
        devices = [each.log.device.ueid for each in shown]
        by_ueid = {ueid: name for name, ueid in bench.ueids.items()}
        import_(bench.registry, ["ueid,address\n", *(f"{each.hex()},{NOWHERE}\n" for each in others(devices, places))])
        for ueid, place, each in zip(devices, places, shown, strict=True):
            if place in involved:
                each.log.snapshot([(4096, bytes_digest(ueid))])
                chips.show(by_ueid[ueid], each, prover=NOWHERE, **({} if plugged else {"address": NOWHERE}))
        report = bench.inspect(
            *names, seed=number, flops_threshold=INVOLVED * DAYS, chip_flops_per_day=1.0, period_days=DAYS,
            snapshot_rate_per_day=1.0,
        )  # fmt: skip
    counts = report["counts"]
    if (counts["registered"], counts["sampled"], counts["unverified_after_draw"]) != (CHIPS, DRAWN, HITS):
        raise AssertionError(counts)
    return Outcome(findings=accusations(report), gain=report["miss"]["p"], cost=1.0)


ROWS = tuple(
    Row(
        name=name,
        source="attacks on the draw",
        wants=HIDDEN_RUN,
        gains="the p that the report still states",
        attack=partial(withheld, plugged),
        expected=(finding,),
        least=WORTH - 5e-4,
        most=WORTH + 5e-4,
        note="Three hits of 60 drawn chips are withheld, of 1,000 chips of which 50 did the run. With the three chips "
        "called not drawn, the report would say 0.951.",
    )
    for name, plugged, finding in (
        ("the drawn chips that would show a run are unplugged", False, "chip.unreachable"),
        ("snapshots of the drawn chips that would show a run are not explained", True, "prover.unreachable"),
    )
)
