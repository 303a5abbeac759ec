"""Disputes about products of a unit that truncates: the referee asks the unit's model, as a replay does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.disputed import judge_here
from support.recordings import replay_here, train
from support.workers_here import workers_here
from torch import nn

from weighbridge.attest.manifest import SigningKey
from weighbridge.execution.dispute import asking, moves, tracing
from weighbridge.execution.dispute.asking import Traced
from weighbridge.execution.dispute.game import DEFENDER
from weighbridge.execution.dispute.messages import START, Shown, signed
from weighbridge.execution.dispute.refereeing import Referee
from weighbridge.execution.unit_adjudication import Adjudication
from weighbridge.numerics.conformance import probes
from weighbridge.numerics.units import chunked_products, injection
from weighbridge.numerics.units.declared_products import LONGEST

KEYS = SigningKey.generate(), SigningKey.generate()
REFEREE = SigningKey.generate()
STEP, WIDTH = 1, 4000
"""Sums as long as any that have a bound, of one sign: there truncation shows most."""


def record(path: Path, width: int = WIDTH) -> Path:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(width, 33), nn.Tanh(), nn.Linear(33, 4))
        with torch.no_grad():
            model[0].weight.abs_()  # type: ignore[operator]
        return model, torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            nn.functional.cross_entropy(model(batch["x"]).float(), batch["y"]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(256, width, generator=generator).abs(), torch.randint(4, (256,), generator=generator)
    train(path, build, step, [{"x": x, "y": y}], policy="unit-h100")
    return path


class Nearest:
    """A device that does not truncate; its results are within the unit's bounds."""

    orders: Mapping[str, int] = {}

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return chunked_products.chunked(a, b).sums.float()


@contextmanager
def other_software() -> Iterator[None]:
    """Of a party that asks no model what its unit makes of anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Adjudication, "judge", lambda *_: None)
        patch.setattr(tracing, "of_unit", lambda wide, bound, found, entries: (found.out, found.checksum))
        patch.setattr(probes, "require_unit", lambda policy: {})
        yield


def traced(run: Path, place: int | None = None) -> Traced:
    with workers_here():
        return asking.trace(run, STEP, place=place)


def ruled(run: Path, asked: Any, answer: Traced) -> dict[int, tuple[str, str]]:
    """The verdict on the defender's claim, of which the challenger has a copy and names fewer leaves."""
    referee = Referee((KEYS[0].public, KEYS[1].public), REFEREE, judge=judge_here)
    referee.post(signed(START, asked, KEYS[0]).data)
    referee.post(signed(referee.dispute.head, moves.answer(answer, asked), KEYS[1]).data)
    with other_software():
        opening = traced(run, referee.dispute.leaf).opening
    assert opening is not None
    referee.post(signed(referee.dispute.head, Shown(opening=opening), KEYS[1]).data)
    claims = vars(referee.ruling.content)["claims"]  # type: ignore[union-attr]
    return {party: (verdict, code) for party, verdict, code, _ in claims}


@pytest.mark.finding("replay.unit.false")
def test_results_that_are_not_the_declared_units_are_refuted(tmp_path: Path) -> None:
    """Nothing else about them is false: log, record and state are those of this device."""
    with other_software(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(injection, "current", Nearest)
        run = record(tmp_path / "run")
    mine = traced(run)
    assert "not those of the unit" in mine.parted
    with other_software():
        theirs = traced(run)
    assert not theirs.parted
    assert ruled(run, moves.challenge(mine, STEP, own=False), theirs) == {DEFENDER: ("false", "replay.unit.false")}


@pytest.mark.parametrize(("width", "chain"), [(WIDTH, 0), (WIDTH, 512), (LONGEST + 8, 512)])
def test_the_declared_units_results_are_admissible(tmp_path: Path, width: int, chain: int) -> None:
    """Also in an order that the draft declares, and of long sums, whose bits that order prescribes."""
    orders = {f"bf16 256x{width}x33": chain} if chain else {}
    with injection.injected("h100", orders):
        run = record(tmp_path / "run", width)
    assert replay_here(run)["unit"]["overruled"] > 0 or width > LONGEST
    theirs = traced(run)
    assert not theirs.parted
    short = theirs.leaves[: _product(run)]
    denied = Traced(**{name: getattr(theirs, name) for name in Traced.__dataclass_fields__} | {"leaves": short})
    found = ruled(run, moves.challenge(denied, STEP, own=False), theirs)
    assert found == {DEFENDER: ("admissible", "dispute.follows")}


def _product(run: Path) -> int:
    """The leaf before that of the first product."""
    from weighbridge.transcript.reader import Transcript
    from weighbridge.transcript.tape import Tape

    transcript = Transcript.open(run)
    nodes = Tape.decode(transcript.tape(transcript.step(STEP).tape)).nodes
    return 1 + next(at for at, node in enumerate(nodes) if node.op == "addmm.default")
