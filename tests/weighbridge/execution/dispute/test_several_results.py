"""Disputes about chunks of operations with several results: layer norms, gradients, sorts and maxima with places."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.disputed import STEP, Party, cheat, judge_here
from support.narrowed import forged, judged, opened, play, verdicts
from support.recordings import train
from torch import nn

from weighbridge.execution.dispute.asking import Traced
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.messages import pack
from weighbridge.execution.dispute.openings import Opening
from weighbridge.execution.dispute.refereeing import verify
from weighbridge.transcript.tape import Tape

SEVERAL = {
    "native_layer_norm.default": 3,
    "native_layer_norm_backward.default": 3,
    "convolution_backward.default": 3,
    "sort.stable": 2,
    "max.dim": 2,
    "max_pool2d_with_indices.default": 2,
}
"""Operations, and how many results they have."""
ONE = ("index_add.default", "max_pool2d_with_indices_backward.default")


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 40, 3, stride=2, groups=4)

    def forward(self, x: torch.Tensor, rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        made = nn.functional.max_pool2d(self.second(self.first(x)), 2).square().sum()
        told = self.norm(rows)
        told = torch.zeros(12, 24).index_add(0, order, told.view(-1, 24)) + told[0, 0]
        return made + told.sort(dim=0).values.square().mean() + told.max(dim=0).values.sum() + told.square().mean()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = _Model()
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(batch["x"], batch["rows"].requires_grad_(), batch["order"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    generator = torch.Generator().manual_seed(1)
    batches = [
        {
            "x": torch.randn(2, 3, 14, 14, generator=generator),
            "rows": torch.randn(10, 30, 24, generator=generator) * 10 ** torch.randn(10, 30, 1, generator=generator),
            "order": torch.randint(0, 12, (300,), generator=generator),
        }
        for _ in range(STEP)
    ]
    path = tmp_path_factory.mktemp("several") / "run"
    train(path, build, step, batches, every=STEP)
    return path


@pytest.fixture(scope="module")
def honest(run: Path) -> tuple[Traced, list[str]]:
    told = Party(run).tree()[0]
    return told, ["enter", *(node.op for node in Tape.decode(told.tape).nodes), "finish"]


def _place(run: Path, names: list[str], op: str) -> int:
    return next(at for at, name in enumerate(names) if name == op and opened(run, at, None).parts)


def _chunks(run: Path, told: Traced, place: int) -> list[list[int]]:
    """Returns the numbers of the chunks of each result."""
    tape, found, first = Tape.decode(told.tape), list[list[int]](), 0
    for output in tape.nodes[place - 1].outputs:
        if output is not None:
            count = max(1, -(-dict(tape.nodes[place - 1].births)[tape.refs[output][0]] // 1024))
            found.append([*range(first, first + count)])
            first += count
    assert 32 * first == len(opened(run, place, None).parts)
    return found


@pytest.mark.finding("dispute.follows.part")
@pytest.mark.parametrize("op", [*SEVERAL, *ONE])
def test_a_chunk_of_each_result_follows_and_a_false_one_is_refuted(
    run: Path, honest: tuple[Traced, list[str]], op: str
) -> None:
    told, names = honest
    place = _place(run, names, op)
    results = _chunks(run, told, place)
    assert len(results) == SEVERAL.get(op, 1)
    for number, numbers in enumerate(results):
        part = numbers[len(numbers) // 2]
        shown = opened(run, place, part).opening
        assert shown is not None
        said = judged(run, place, part, told, shown)
        assert (said.verdict, said.code) == ("admissible", "dispute.follows.part"), said.reason
        assert f"chunk {part - numbers[0]} of {len(numbers)} of" in said.reason
        assert len(results) == 1 or f"of result {number} of leaf {place} ({op})" in said.reason
        said = judged(run, place, part, told, shown, **forged(told, place, part, opened(run, place, None), shown))
        assert (said.verdict, said.code) == ("false", "dispute.leaf")


@pytest.mark.parametrize("op", ["native_layer_norm.default", "convolution_backward.default"])
def test_a_liar_is_found_by_a_chunk(run: Path, honest: tuple[Traced, list[str]], op: str) -> None:
    place = _place(run, honest[1], op)
    referee = play(Party(run), cheat(run, place - 1))
    assert referee.dispute.part is not None
    assert verdicts(referee) == {CHALLENGER: "admissible", DEFENDER: "false"}
    assert verify(pack(referee.log()), judge_here).agrees


@pytest.mark.finding("dispute.opening")
def test_a_worst_row_is_named_where_the_bound_reads_one(run: Path, honest: tuple[Traced, list[str]]) -> None:
    """Another row than the worst makes the bound smaller, which admits no result that the whole does not admit."""
    told, names = honest
    place = _place(run, names, "native_layer_norm.default")
    data = opened(run, place, 0).opening
    assert data is not None
    shown = Opening.from_cbor(data)
    assert shown.worst is not None
    assert Opening.from_cbor(shown.to_cbor()) == shown
    for other in (None, shown.worst + 1, 300, 1 << 63):  # its chunks are not those of another row
        said = judged(run, place, 0, told, replace(shown, worst=other).to_cbor())
        assert (said.verdict, said.code) == ("forfeit", "dispute.opening"), said.reason
    place = _place(run, names, "sort.stable")
    data = opened(run, place, 0).opening
    assert data is not None
    said = judged(run, place, 0, told, replace(Opening.from_cbor(data), worst=0).to_cbor())
    assert (said.verdict, said.code) == ("forfeit", "dispute.opening")
