"""Starts of generators: what follows is free or cheap, and no set of choices costs less than it brings in."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recordings import replay_here, train
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from weighbridge.core.errors import TapeError
from weighbridge.program.chosen_bits import ChosenBits
from weighbridge.program.generator_starts import UNSEEDED, Starts, charge
from weighbridge.program.start_rules import WORD
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Node, Tape

Draws = dict[int, tuple[int, Sequence[int]]]
"""Of each generator: where it starts, and the offsets of its draws."""


def one_step(number: int, draws: Draws) -> tuple[StepRecord, Tape]:
    """A step that only draws, as a Recorder would have written it."""
    nodes = [Node("rand.default", (), {}, (), (), (n, o)) for n, (_, offsets) in draws.items() for o in offsets]
    tape = Tape(nodes=nodes)
    record = StepRecord(
        step=number, kind="step" if number else "init", tape=tape.digest, values=[], host=[],
        rng={str(n): (at, (at + offsets[-1] + 1) % WORD) for n, (at, offsets) in draws.items()},
        state=bytes(32), checksums=b"", rounding=bytes(32), batch=bytes(32), records=[], record_digests=[],
        free=[], snapshots=[], rounded=0, logged=0,
    )  # fmt: skip
    return record, tape


def charged(steps: Sequence[Draws], seed: int = 7) -> float:
    """Bits that are charged for a run."""
    chosen = ChosenBits()
    starts = Starts(seed, chosen)
    for number, draws in enumerate(steps):
        starts.step(*one_step(number, draws))
    return chosen.total("generators")


def test_going_on_is_free() -> None:
    steps: list[Draws] = [{0: (5 * step, range(5))} for step in range(50)]
    assert charged(steps) == 0
    assert charged([{0: (0, range(3)), 2: (UNSEEDED, range(2))}, {0: (3, range(3)), 2: (UNSEEDED + 2, range(2))}]) == 0


HONEST: dict[str, tuple[list[Draws], float]] = {
    "seeded once": ([{0: (42 + 5 * step, range(5))} for step in range(200)], 20),
    "seeded with the step's number": ([{2: (step, range(5))} for step in range(200)], 30),
    "seeded with a large number and the step's": ([{2: (10**9 + step, range(5))} for step in range(200)], 75),
    "seeded alike in each step": ([{2: (1234, range(5))} for step in range(200)], 50),
    "seeded with the epoch, of 20 steps": ([{0: (step // 20 + 5 * (step % 20), range(5))} for step in range(2000)], 45),
    "seeded with epoch and step": ([{2: (1000 * (step // 20) + step % 20, range(5))} for step in range(200)], 90),
    "two own generators that take turns": (
        [{2: ((11, 29)[step % 2] + (step // 2) * (5, 4)[step % 2], range(5 - step % 2))} for step in range(200)], 55,
    ),
    "drawn from anew, as in recomputation": (
        [{0: (8 * step, [*range(8), *range(4, 8), *range(4), *range(8)])} for step in range(200)], 45,
    ),
    "a fork seeded with the step's number": (
        [{0: (5 * step, [0, 1, *(step - 5 * step + i for i in range(3)), 2, 3, 4])} for step in range(1, 200)], 75,
    ),
    "a fork with one seed, before all else": (
        [{0: (3, [0, 1, 2, *(2 * step - 3 + i for i in range(2))])} for step in range(200)], 65,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_programs_are_charged_little(name: str) -> None:
    steps, most = HONEST[name]
    assert 0 < charged(steps) <= most


def test_chosen_starts_are_charged_in_full() -> None:
    words = random.Random(3)
    for count in (1, 10, 100):
        steps: list[Draws] = [{0: (words.getrandbits(64), range(3))} for _ in range(count)]
        assert charged(steps) >= 64 * count
    many: Draws = {number: (words.getrandbits(64), [0]) for number in range(2, 102)}
    assert charged([many]) >= 64 * 100


def test_jumps_are_charged_where_they_are_first_made() -> None:
    words = random.Random(4)
    offsets = [0, *(words.getrandbits(63) for _ in range(20))]
    once = charged([{0: (0, offsets)}])
    assert once >= 63 * 20
    goes_on: Draws = {0: ((offsets[-1] + 1) % WORD, offsets)}
    assert charged([{0: (0, offsets)}, goes_on]) == once


CHOICES: dict[str, tuple[int, list[Callable[[int], int]]]] = {
    "on or a large number": (9, [lambda at: at, lambda at: 1 << 40]),
    "on, the same again or a large number": (6, [lambda at: at, lambda at: max(0, at - 1), lambda at: 1 << 40]),
    "on, small numbers or one left out": (5, [lambda at: at, lambda at: 0, lambda at: 5, lambda at: at + 1]),
}


@pytest.mark.parametrize("where", ["steps", "draws"])
@pytest.mark.parametrize("choices", CHOICES)
def test_no_way_to_choose_is_cheaper_than_what_it_brings_in(where: str, choices: str) -> None:
    """All runs that some choices allow: by Kraft's inequality, 2^-charge over all of them is at most about 1.

    The run without a choice, which is free, takes 1 alone; that is the bit which says whether there is any.
    """
    count, alternatives = CHOICES[choices]
    runs = set[tuple[int, ...]]()
    for chosen in itertools.product(alternatives, repeat=count):
        at, places = 0, list[int]()
        for choice in chosen:
            places.append(choice(at))
            at = places[-1] + 1
        runs.add(tuple(places))
    if where == "steps":
        totals = [charged([{0: (place, [0])} for place in places]) for places in runs]
    else:
        totals = [charged([{0: (0, [0, *(place + 1 for place in places)])}]) for places in runs]
    assert len(runs) > 1 << 7
    assert 1 <= sum(2.0**-bits for bits in totals) < 1.05


def test_counters_that_are_not_those_of_the_draws_are_refused() -> None:
    record, tape = one_step(0, {0: (0, range(3))})
    for rng in ({"0": (0, 4)}, {"0": (0, 3), "2": (0, 1)}, {}):
        fields = {name: getattr(record, name) for name in StepRecord.__slots__} | {"rng": rng}
        with pytest.raises(TapeError, match=r"counters|does not name"):
            Starts(7, ChosenBits()).step(StepRecord(**fields), tape)


def test_a_long_tape_takes_linear_time() -> None:
    """Jumps to different places; looking back over all of them at each would take a hundred times as long."""
    assert charged([{0: (0, [(i * i) % 65_537 for i in range(6_000)])}]) > 6_000


# What recorded programs do.

Build = Callable[[], tuple[Any, ...]]
Step = Callable[..., None]


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _update(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def dropout(batch: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    _update(model(batch).square().mean(), optimizer)


def checkpointed(batch: Tensor, model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    hidden = model[0](batch)
    for _ in range(2):
        part: Any = checkpoint(lambda h: F.dropout(F.dropout(h, 0.1), 0.1), hidden, use_reentrant=False)
        hidden = hidden + part
    _update(model[3](hidden).square().mean(), optimizer)


def diffusion() -> Step:
    steps = itertools.count()

    def step(batch: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        generator = torch.Generator().manual_seed(next(steps))
        noise = torch.randn(batch.shape, generator=generator)
        _update((model(batch + noise) - torch.randn(3, generator=generator)).square().mean(), optimizer)

    return step


def epochs() -> Step:
    steps = itertools.count()

    def step(batch: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        number = next(steps)
        if number % 3 == 0:
            torch.manual_seed(100 + number // 3)
        dropout(batch, model, optimizer)

    return step


def forked(batch: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        noise = torch.randn(batch.shape)
    dropout(batch + noise, model, optimizer)


@pytest.mark.parametrize(
    ("step", "most"),
    [
        pytest.param(lambda: dropout, 0, id="dropout"),
        pytest.param(lambda: checkpointed, 60, id="activation checkpointing"),
        pytest.param(diffusion, 45, id="noise seeded with the step's number"),
        pytest.param(epochs, 60, id="seeded with the epoch"),
        pytest.param(lambda: forked, 65, id="a fork with a seed of its own"),
    ],
)
def test_recorded_programs_are_charged_little(tmp_path: Path, step: Callable[[], Step], most: float) -> None:
    train(tmp_path / "run", build, step(), [torch.ones(4, 6)] * 9)
    assert replay_here(tmp_path / "run", steps=(9, 10))["verdict"] == "match"
    chosen = bits_of(tmp_path / "run")
    assert chosen.total("generators") <= most, chosen.to_json()
    assert bool(chosen.total("generators")) == bool(most)


@pytest.mark.parametrize(("name", "most"), [("chance", 20), ("resumed", 0), ("job/rank-0001", 0), ("fine-tuned", 0)])
def test_recordings_of_earlier_versions_are_charged_little(name: str, most: float) -> None:
    assert bits_of(Path(__file__).parents[2] / "golden" / name).total("generators") <= most


def bits_of(path: Path) -> ChosenBits:
    """What the starts in a transcript are charged."""
    transcript, chosen = Transcript.open(path), ChosenBits()
    charge(transcript, lambda digest: Tape.decode(transcript.tape(digest)), chosen)
    return chosen
