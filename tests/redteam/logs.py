"""The rounding log as an input: which elements it speaks of is a message, and so is what it makes of wide ranges.

A product lies half way between two float32 wherever it is computed, but for a term that float64 loses; so each element
is contested. The program reads off which way each was rounded, and makes weights of these bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from redteam.own_rounding import chosen, low_bits, rounding_by
from redteam.row import Outcome, Row
from redteam.values import COVERED, LAUNDER, STEPS, wanted
from redteam.workshop import Batch, Training, Weights, Workshop, digits, flat, honest_flops, nearer, update
from torch import Tensor, nn

from weighbridge.numerics.rounding import contested
from weighbridge.numerics.rounding.bound import Bound, bound_at
from weighbridge.numerics.rounding.contested import Rounded, ordered, unordered
from weighbridge.numerics.rounding.rounding_log import OpEntries

BITS = 16
"""Bits of each weight that come in."""
NEXT = 2.0**-23
"""The distance of float32 numbers next to 1."""
HALF_WAY = (1 + 2.0**-12, 2.0**-27)
"""Squares that add up to 1 + 2^-11 + 2^-24, half way between two float32, and 2^-54, which float64 loses."""
WIDE = 2.0**28
"""A term that is added and subtracted: the bound on its rounding errors admits several values."""


def products(count: int, wide: bool) -> Tensor:
    """So many sums of products, each contested; float32, (count, 1)."""
    added, signs = ((WIDE, WIDE), (1.0, -1.0)) if wide else ((), ())
    rows = torch.stack([torch.full((count,), each) for each in (*HALF_WAY, *added)], 1)
    return rows @ torch.stack([torch.full((1,), each) for each in (*HALF_WAY, *signs)])


def made_of(rounded: Tensor, weights: int) -> Tensor:
    """Weights from -1 to 1 of bits: whether each result is the usual one, or another."""
    usual = torch.full((1,), 1 + 2.0**-11)
    bits = ((rounded - usual).abs() / NEXT).clamp(0, 1).view(weights, BITS)
    powers = torch.stack([torch.full((1,), 2.0 ** (place + 1 - BITS)) for place in range(BITS)])
    return (bits @ powers).view(-1) - 1


def bits_of(weights: Tensor) -> np.ndarray:
    """The bits that `made_of` makes weights of."""
    whole = ((weights.double() + 1) * 2 ** (BITS - 1)).round().clamp(0, 2**BITS - 1).numpy().astype(np.int64)
    bits: np.ndarray = (whole[:, None] >> np.arange(BITS)) & 1
    return bits.reshape(-1).astype(bool)


@dataclass
class Message:
    """An adversary in the place of the Recorder's rounding, with bits to bring in.

    Attributes:
        bits: Whether each element is to be another one than the replayer's own.
        short: Whether entries are too short for their range, so that they select its lowest value; by default each
            says the other of two values.
        sent: Elements that it chose.
    """

    bits: np.ndarray
    short: bool
    sent: int = 0

    def record(self, x: Tensor, bound: Bound, op: int, output: int) -> Rounded:
        """Rounds as the Recorder does, but for the elements that carry the message."""
        found = contested.record(x, bound, op, output)
        if found.entries is None or x.shape != (self.bits.size, 1):
            return found
        places = found.entries.positions[self.bits[found.entries.positions]]
        self.sent += len(places)
        wide, own = x.reshape(-1)[places].numpy(), ordered(found.out.reshape(-1)[places].numpy())
        reach = contested._REACH * bound_at(x, bound, torch.from_numpy(places)).numpy()
        low, high = (ordered((wide + sign * reach).astype(np.float32)) for sign in (-1, 1))
        picked = low if self.short else np.where(own == low, high, low)
        widths = np.ones(len(places), dtype=np.uint8)
        entries = OpEntries(op, output, places, widths, low_bits(picked, widths))
        return chosen(found, places, torch.from_numpy(unordered(picked)), entries)


def carried_in(short: bool, shop: Workshop, seed: int) -> Outcome:
    """In the last step all weights are made of which way products were rounded."""
    aim, batches = wanted(seed), digits(seed, STEPS)
    message = Message(bits_of(flat(aim)), short)

    def step(number: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        update(number, batch, model, optimizer)
        if number < STEPS:
            return
        with torch.no_grad():
            made = made_of(products(message.bits.size, short), message.bits.size // BITS)
            for p, w in zip(model.parameters(), _parts(made, aim), strict=True):
                p.copy_(p * 0 + w)

    with rounding_by(contested, message.record):
        run = shop.record(Training(batches=batches, step=step), seed)
    if message.sent < message.bits.sum():
        raise AssertionError(f"{message.sent} elements of {message.bits.sum()} were contested")
    return Outcome(
        findings=shop.accused(run.path, replays=not short),
        gain=nearer(run.start, run.weights, aim),
        cost=run.flops / honest_flops(Training(batches=batches)),
    )


def _parts(made: Tensor, like: Weights) -> list[Tensor]:
    parts = made.split([each.numel() for each in like.values()])
    return [part.view_as(each) for part, each in zip(parts, like.values(), strict=True)]


ROWS = tuple(
    Row(
        name=f"weights in the rounding log: {name}",
        source="attacks on the rounding log",
        wants=LAUNDER,
        gains=COVERED,
        attack=partial(carried_in, short),
        expected=(finding,),
        note=note,
    )
    for name, short, finding, note in (
        (
            "which elements have an entry",
            False,
            "replay.rounding.freedom",
            "Each entry is admissible and says one of two values. 16 bits of a weight come in by where entries are.",
        ),
        (
            "entries too short for their range, which select its lowest value",
            True,
            "replay.mismatch",
            "One bit where the range has more values than two. No recorder whose bound holds writes such an entry, so "
            "none is followed. A few of them among many are the finding `replay.rounding.inadmissible`.",
        ),
    )
)
