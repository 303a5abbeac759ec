"""Chunks that end in another row of the result than they begin: a product reads no more operands for them.

A liar chooses which chunk is disputed. Were both rows made at once, all columns would be, and an honest party would
show all of a weight matrix: of a large vocabulary, more than there is room for.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.disputed import STEP, Party
from support.narrowed import forged, judged, opened, places
from support.recordings import train
from torch import nn

from weighbridge.execution.dispute.asking import Traced
from weighbridge.numerics.slices.parts import at_borders, enclosing
from weighbridge.transcript.tape import Tape

WIDTH, COLUMNS = 64, 700
WITHIN, STRADDLING = 1, 2
"""Chunks of 256 elements, in rows of 700."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(WIDTH, COLUMNS)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    generator = torch.Generator().manual_seed(1)
    batches = [
        {"x": torch.randn(8, WIDTH, generator=generator), "y": torch.randint(0, COLUMNS, (8,), generator=generator)}
        for _ in range(STEP)
    ]
    path = tmp_path_factory.mktemp("straddling") / "run"
    train(path, build, step, batches, every=STEP)
    return path


@pytest.fixture(scope="module")
def told(run: Path) -> Traced:
    return Party(run).tree()[0]


def test_such_a_chunk_takes_as_much_as_any_other(run: Path, told: Traced) -> None:
    (place,) = places(["enter", *(node.op for node in Tape.decode(told.tape).nodes)], "addmm.default")
    sizes = {}
    for part in (WITHIN, STRADDLING):
        shown = opened(run, place, part).opening
        assert shown is not None
        sizes[part] = len(shown)
        assert judged(run, place, part, told, shown).verdict == "admissible"
        lie = forged(told, place, part, opened(run, place, None), shown)
        assert judged(run, place, part, told, shown, **lie).verdict == "false"
    weights = 4 * WIDTH * COLUMNS
    assert sizes[STRADDLING] < sizes[WITHIN] + weights / 10 < weights


@given(st.lists(st.integers(1, 9), max_size=4), st.data())
def test_ranges_are_the_elements_and_their_boxes_have_few_others(shape: list[int], data: st.DataObject) -> None:
    """Law: the ranges of `at_borders` are, one after the other, the elements that it was given."""
    count = math.prod(shape)
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    found = at_borders(tuple(shape), start, stop)
    assert [at for each in found for at in range(*each)] == list(range(start, stop))
    assert len(found) <= 2
    boxes = [enclosing(tuple(shape), *each) for each in found]
    assert sum(math.prod(high - low for low, high in box) for box in boxes) <= 3 * (stop - start)
