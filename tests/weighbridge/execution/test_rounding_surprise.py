"""The charge for a log: never below what the log could bring in, and nothing where it confirms the replayer."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch

from weighbridge.execution.choice_statistics import Tally
from weighbridge.execution.rounding_surprise import Overruled, Surprise, subset
from weighbridge.numerics.rounding import contested
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.contested import ordered
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.program.chosen_bits import ChosenBits


def charged(step: int, outputs: list[Overruled | None], sizes: list[int]) -> float:
    surprise = Surprise()
    for size, each in zip(sizes, outputs, strict=True):
        surprise.add(step, size, False, "mm.default", each)
    return surprise.bits(step)


@pytest.mark.parametrize("step", [0, 1, 7])
def test_outcomes_cannot_all_be_cheap(step: int) -> None:
    """Kraft's inequality, over every outcome of two outputs: elements with so many values, the first ones contested."""
    outputs = [((3, 2, 2, 1), 3), ((4, 2, 2), 1)]
    total = 0.0
    for chosen in product(*(product(*(range(v) for v in values)) for values, _ in outputs)):  # 0 is the replayer's own
        said: list[Overruled | None] = []
        for (values, known), picks in zip(outputs, chosen, strict=True):
            inside, outside = sum(p > 0 for p in picks[:known]), sum(p > 0 for p in picks[known:])
            bits = sum(math.log2(v - 1) for v, p in zip(values, picks, strict=True) if p)
            said.append(Overruled(len(values), known, inside, outside, bits) if inside + outside else None)
        total += 2.0 ** -charged(step, said, [4, 3])
    assert 1.0 < total <= 1 + 1 / (step + 1)


def test_what_confirms_the_replayer_costs_nothing() -> None:
    ledger, surprise = ChosenBits(), Surprise()
    for step in range(5):
        surprise.add(step, 1 << 20, step == 3, "mm.default", None)
    surprise.enter(ledger)
    assert (surprise.total(), surprise.most(), ledger.total()) == (0.0, 0.0, 0.0)
    assert surprise.steps[3].narrow == 1 << 20


def test_charges_are_entered_by_step() -> None:
    ledger, surprise = ChosenBits(), Surprise()
    surprise.add(1, 1000, False, "mm.default", Overruled(1000, 30, 3, 0, 0.0))
    surprise.add(2, 1000, False, "mm.default", None)
    surprise.add(4, 1000, False, "sum.default", Overruled(1000, 30, 30, 0, 7.5))
    surprise.enter(ledger)
    assert ledger.bits["roundings"] == {1: surprise.bits(1), 4: surprise.bits(4)}
    assert math.isclose(ledger.total("roundings"), surprise.total())
    assert "30 roundings overruled" in ledger.what["roundings"][1] or "3 roundings" in ledger.what["roundings"][1]


@pytest.mark.parametrize(("of", "chosen"), [(1, 0), (1, 1), (10, 3), (1000, 500), (1 << 40, 3)])
def test_a_subset_takes_the_bits_of_its_number(of: int, chosen: int) -> None:
    assert subset(of, chosen) == pytest.approx(math.log2(math.comb(of, chosen)), rel=1e-4, abs=1e-9)


# --- the positions of entries as a message ----------------------------------------------------------------------------


def test_which_elements_have_an_entry_is_charged() -> None:
    """A payload in the choice of elements: each entry says one bit by its value and seven by its place."""
    rng = np.random.default_rng(3)
    size, chosen = 1 << 16, 400
    exact = (1 + rng.integers(0, 1 << 23, size) / 2**23) + 2.0**-24  # half way between two float32 throughout
    x = torch.from_numpy(exact + rng.uniform(-1, 1, size) * 2.0**-40)
    bound = Bound(absolute=2.0**-36)
    at = np.sort(rng.choice(size, chosen, replace=False)).astype(np.int64)
    own = ordered(contested.round_plain(x)[0].numpy()[at])
    entries = OpEntries(0, 0, at, np.ones(chosen, np.uint8), ((own + 1) & 1).astype(np.uint64))
    followed = contested.follow(x, bound, entries)
    assert (followed.followed, followed.inadmissible) == (chosen, 0)
    tally = Tally()
    tally.add(1, "mm.default", x, bound, torch.float32, entries, followed.choices)
    tally.settle()
    carried = subset(size, chosen)
    assert carried / chosen > 7.15
    assert carried <= tally.charged_bits < carried + 32
    assert tally.bits_in == chosen, "what was counted of them when only values were"


def test_an_entry_too_short_to_name_one_value_is_refused() -> None:
    """Its lower values would be free for the asking: k = 1 where five values are admissible."""
    x, bound = torch.tensor([1.5, 2.5], dtype=torch.float64), Bound(absolute=2.0**-23)
    honest = contested.record(x, bound, 0, 0).entries
    assert honest is not None
    assert honest.widths.min() > 1
    assert contested.follow(x, bound, honest).inadmissible == 0
    short = OpEntries(0, 0, honest.positions, np.ones(2, np.uint8), honest.bits & np.uint64(1))
    assert contested.follow(x, bound, short).inadmissible == 2
