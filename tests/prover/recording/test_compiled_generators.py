"""Compiled steps that draw from generators of the program's own, wherever these are, and whatever is done to them."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prover import Recorder
from prover.recording.compile_refusal import CompileError
from tests.support.compiled_programs import (
    CHANGED,
    Arguments,
    Program,
    Quick,
    content,
    once,
    recorded,
    same_both_ways,
)
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.transcript.reader import Transcript

pytestmark = pytest.mark.filterwarnings("ignore")

STEPS = 11


class Own(Quick):
    """Noise and a mask from one generator of its own."""

    steps = STEPS

    def __init__(self) -> None:
        self.noise = torch.Generator().manual_seed(11)
        super().__init__()

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))

    def generators(self) -> list[torch.Generator]:
        return [self.noise]

    def loss(self, batch: Any) -> Tensor:
        x = batch["x"] + 0.1 * torch.randn(batch["x"].shape, generator=self.noise)
        kept = torch.bernoulli(torch.full((6,), 0.8), generator=self.noise)
        return F.cross_entropy(self.model(x * kept[:, None]), batch["y"])


class Samplers(Own):
    """Rows by a permutation, by weights and by numbers, drawn by one generator that two modules share."""

    def loss(self, batch: Any) -> Tensor:
        order = torch.randperm(6, generator=self.noise)
        rows = torch.multinomial(torch.ones(6), 4, generator=self.noise)
        more = torch.randint(0, 6, (3,), generator=self.noise)
        at = torch.cat([order, rows, more])
        x = batch["x"][at] + torch.empty(13, 8).uniform_(-0.1, 0.1, generator=self.noise)
        return F.cross_entropy(self.model(x), batch["y"][at])


class Several(Own):
    """Two of its own beside the default one: in an attribute of a module, and in a closure; one in a list is idle."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = [torch.Generator().manual_seed(1)]
        self.model.noise = self.noise
        other = torch.Generator().manual_seed(12)

        def mask() -> Tensor:
            return torch.rand(6, 8, generator=other) < 0.8

        self.mask, self.other = mask, other

    def generators(self) -> list[torch.Generator]:
        return [self.noise, self.other, *self.idle]

    def loss(self, batch: Any) -> Tensor:
        x = batch["x"] * self.mask() + torch.rand(6, 8) + torch.rand(6, 8, generator=self.model.noise)
        return F.cross_entropy(self.model(x) + torch.rand(6, 4, generator=self.other), batch["y"])


class Passed(Own):
    """One in an argument, which is the same in each call."""

    def batch(self, number: int, rows: int = 6) -> Any:
        return Arguments((super().batch(number, rows), {"noise": self.noise}))

    def function(self, batch: Any, options: Any = None) -> Any:
        noise = torch.randn(batch["x"].shape, generator=options["noise"])
        loss = F.cross_entropy(self.model(batch["x"] + noise) + torch.rand(6, 4, generator=self.noise), batch["y"])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()


class Fresh(Passed):
    """Another one in each call, which is seeded by its number."""

    def batch(self, number: int, rows: int = 6) -> Any:
        return Arguments((Own.batch(self, number, rows), {"noise": torch.Generator().manual_seed(number)}))


class InTurns(Passed):
    """The one in the argument is, by turns, the one in the attribute: then both draw from it."""

    def batch(self, number: int, rows: int = 6) -> Any:
        noise = self.noise if number % 2 else torch.Generator().manual_seed(number)
        return Arguments((Own.batch(self, number, rows), {"noise": noise}))


class OfModule(Own):
    """It lies in a module of Python's, and in an attribute that is not used."""

    def __init__(self) -> None:
        super().__init__()
        MODULE.noise = self.noise  # type: ignore[attr-defined]

    def loss(self, batch: Any) -> Tensor:
        x = batch["x"] + torch.rand(6, 8, generator=MODULE.noise)
        return F.cross_entropy(self.model(x), batch["y"])


MODULE = types.ModuleType("of_a_program")


class Default(Own):
    """What it calls its own is the default one."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = torch.default_generator


class OfClass(Own):
    """A class of the program's."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = Louder().manual_seed(3)

    def loss(self, batch: Any) -> Tensor:
        assert isinstance(self.noise, Louder)
        return super().loss(batch) * self.noise.by


class Louder(torch.Generator):
    by = 1.0


@pytest.mark.parametrize(
    ("kind", "programs"),
    [
        pytest.param(Own, STEPS - 3, marks=pytest.mark.essential),
        (Samplers, STEPS - 3),
        (Several, STEPS - 3),
        (Passed, STEPS - 3),
        (Fresh, STEPS - 3),
        (InTurns, STEPS - 5),
        (OfModule, STEPS - 3),
        (Default, STEPS - 3),
        (OfClass, STEPS - 3),
    ],
)
def test_draws_of_own_generators_are_those_of_plain_steps(tmp_path: Path, kind: type[Own], programs: int) -> None:
    step, _ = same_both_ways(tmp_path, kind, logs="on-demand")
    assert step.compiled == programs, step.reason


@pytest.mark.parametrize("logs", ["full", "on-demand"])
def test_a_recording_with_own_generators_replays_and_goes_on_after_a_crash(tmp_path: Path, logs: str) -> None:
    recorded(tmp_path / "plain" / "run", Several, compiled=False, logs=logs)
    with pytest.raises(KeyboardInterrupt):
        recorded(tmp_path / "again" / "run", Several, compiled=True, logs=logs, resume=True, stop=5)
    _, step, _ = recorded(tmp_path / "again" / "run", Several, compiled=True, logs=logs, resume=True)
    assert step is not None
    assert step.compiled
    again = content(tmp_path / "again" / "run")
    assert again.pop("resumptions.cbor")
    assert again == content(tmp_path / "plain" / "run")
    request = {
        "path": tmp_path / "again" / "run", "steps": None, "device": "cpu", "stop": None, "salt": "",
        "memory": 1 << 30, "seconds": 60,
    }  # fmt: skip
    with torch.no_grad():
        assert Replay(request, [], lambda _: None).run()["verdict"] == "match"


def test_the_record_says_from_which_generators_a_program_drew(tmp_path: Path) -> None:
    recorded(tmp_path / "run", Several, compiled=True, logs="on-demand")
    last = Transcript.open(tmp_path / "run").step(STEPS)
    draws = {"2": (12, 2), "3": (11, 1)}
    for number, (seed, each) in draws.items():
        assert last.rng[number] == (seed + each * (STEPS - 1), seed + each * STEPS)
    assert last.rng.keys() == {"0", *draws}


# -- what is done to generators between steps --------------------------------------------------------------------------


def seed(program: Own, recorder: Recorder) -> None:
    program.noise.manual_seed(99)


def put_back(program: Own, recorder: Recorder) -> None:
    program.noise.set_state(torch.Generator().manual_seed(13).get_state())


def draw(program: Own, recorder: Recorder) -> None:
    torch.rand(3, generator=program.noise)


def replace(program: Own, recorder: Recorder) -> None:
    program.noise = torch.Generator().manual_seed(5)


def copied(program: Own, recorder: Recorder) -> None:
    program.noise = copy.deepcopy(program.noise)


def lent(program: Own, recorder: Recorder) -> None:
    """Two places have one generator from now on."""
    program.idle[0] = program.noise  # type: ignore[attr-defined]


def by_default(program: Own, recorder: Recorder) -> None:
    program.noise = torch.default_generator


def louder(program: Own, recorder: Recorder) -> None:
    program.noise.by = 2.0  # type: ignore[attr-defined]


def of_module(program: Own, recorder: Recorder) -> None:
    MODULE.noise = torch.Generator().manual_seed(21)  # type: ignore[attr-defined]


def beside_module(program: Own, recorder: Recorder) -> None:
    program.noise = torch.Generator().manual_seed(22)


@pytest.mark.parametrize(
    ("change", "kind", "again"),
    [
        (seed, Own, 0),
        (put_back, Own, 0),
        (draw, Own, 0),
        (replace, Own, 2),
        (copied, Own, 2),
        (by_default, Own, 2),
        (lent, Several, 2),
        (louder, OfClass, 2),
        (of_module, OfModule, 2),
        (beside_module, OfModule, 2),
    ],
    ids=lambda each: each.__name__ if callable(each) and not isinstance(each, type) else None,
)
def test_what_is_done_to_a_generator_between_steps_is_as_in_plain_steps(
    tmp_path: Path, change: Callable[[Any, Recorder], Any], kind: type[Own], again: int
) -> None:
    step, _ = same_both_ways(tmp_path, kind, disturb=once(change), logs="on-demand")
    assert step.compiled == STEPS - 3 - again, step.reason


def test_one_that_is_seeded_before_each_step_is_known_where_it_was(tmp_path: Path) -> None:
    def anew(program: Program, number: int, recorder: Recorder) -> None:
        program.generators()[0].manual_seed(4 if number < CHANGED else 40 + number)

    step, _ = same_both_ways(tmp_path, Own, disturb=anew, logs="on-demand")
    assert step.compiled == STEPS - 3 - 1, step.reason


# -- what a function does to them --------------------------------------------------------------------------------------


class Seeds(Own):
    def function(self, batch: Any) -> Any:
        self.noise.manual_seed(11)
        super().function(batch)


class SeedsAfterwards(Own):
    def function(self, batch: Any) -> Any:
        super().function(batch)
        self.noise.manual_seed(11)


class SeedsAnother(Several):
    def function(self, batch: Any) -> Any:
        super().function(batch)
        self.idle[0].manual_seed(self.noise.initial_seed())


class PutsBack(Own):
    def function(self, batch: Any) -> Any:
        state = self.noise.get_state()
        super().function(batch)
        self.noise.set_state(state)


class Repeats(Own):
    def loss(self, batch: Any) -> Tensor:
        loss = super().loss(batch)
        self.noise.manual_seed(self.noise.initial_seed() - 2)
        return loss + super().loss(batch)


class Makes(Own):
    def loss(self, batch: Any) -> Tensor:
        noise = torch.rand(6, 4, generator=torch.Generator().manual_seed(3))
        return F.cross_entropy(self.model(batch["x"]) + noise, batch["y"])


class Replaces(Own):
    def function(self, batch: Any) -> Any:
        super().function(batch)
        self.noise = torch.Generator().manual_seed(self.noise.initial_seed())


class Forks(Own):
    """Draws by a seed of its own, and leaves the default generator where it was."""

    fixed = 50

    def loss(self, batch: Any) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.fixed)
            x = batch["x"] + torch.rand(6, 8)
        return F.cross_entropy(self.model(x), batch["y"])


REFUSED: dict[type[Program], str] = {
    Seeds: "it seeds a generator",
    SeedsAfterwards: "it seeds a generator",
    SeedsAnother: "it seeds a generator",
    PutsBack: "it seeds a generator",
    Repeats: "it seeds a generator",
    Makes: "draws from a generator that nothing leads to",
    Replaces: r"it changes .*noise",
    Forks: "it seeds a generator",
}


@pytest.mark.finding("record.compile.refused")
@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_function_that_does_more_to_generators_than_draw_is_refused(tmp_path: Path, kind: type[Program]) -> None:
    with pytest.raises(CompileError, match=REFUSED[kind]):
        recorded(tmp_path / "run", kind, compiled=True, steps=7, logs="on-demand")


class Peeks(Own):
    """Draws from the default generator without a trace: it is back where it was."""

    def batch(self, number: int, rows: int = 6) -> Any:
        return super().batch(int(torch.randint(1000, ())), rows)  # moves its state and not its counter

    def loss(self, batch: Any) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            x = batch["x"] + torch.rand(6, 8)
        return F.cross_entropy(self.model(x), batch["y"])


def test_the_default_generator_is_put_back_with_all_of_its_state(tmp_path: Path) -> None:
    def anew(program: Program, number: int, recorder: Recorder) -> None:
        if number < 4:
            torch.manual_seed(number)

    step, _ = same_both_ways(tmp_path, Peeks, disturb=anew, logs="on-demand")
    assert step.compiled >= 4, step.reason


class Hides(Own):
    """Seeds by a fixed number between two draws, which looks like going back by one where each call begins there."""

    def loss(self, batch: Any) -> Tensor:
        x = batch["x"] + torch.rand(6, 8)
        torch.manual_seed(5)
        return F.cross_entropy(self.model(x + torch.rand(6, 8)), batch["y"])


class Coincides(Forks):
    """Seeds by the number where initialisation left the generator."""

    fixed = 5


@pytest.mark.parametrize(("kind", "again"), [(Hides, 1), (Coincides, 0)])
def test_a_fixed_seed_that_looks_like_going_on_is_noticed(tmp_path: Path, kind: type[Own], again: int) -> None:
    """Where it was before the change, a generator may be again after it."""

    def seeds(program: Program, number: int, recorder: Recorder) -> None:
        if number == CHANGED:
            torch.manual_seed(77)

    step, _ = same_both_ways(tmp_path, kind, disturb=seeds, logs="on-demand")
    assert step.compiled == CHANGED - 3 + again, step.reason
