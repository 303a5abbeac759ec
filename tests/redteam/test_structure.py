"""The structure of programs as data: references into a table of all bytes spell weights that were made elsewhere.

What is spelled is charged its bits, however few; that it is accused as soon as there are more than in honest programs
is a row of the catalogue (`redteam.spelled`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from redteam.spelled import spelled
from support.recordings import replay_here, train
from torch import Tensor, nn

from weighbridge.program.tape_policy import BUDGETS

WEIGHTS = 10240
STEPS = 3


def foreign(count: int = WEIGHTS) -> Tensor:
    """The weights of a model made elsewhere."""
    return torch.randn(count, generator=torch.Generator().manual_seed(99))


def in_bytes(wanted: Tensor) -> Tensor:
    """Numbers from references into a table of all 256 bytes."""
    return spelled(wanted.numpy().tobytes())


def drawn(wanted: Tensor) -> Tensor:
    """The same by integers in operands: each number is a range that begins there and has one element."""
    words = wanted.numpy().view(np.int32)
    return torch.cat([torch.arange(int(w), int(w) + 1, dtype=torch.int32) for w in words]).view(torch.float32)


def sliced(wanted: Tensor) -> Tensor:
    """The same by where slices begin, and how they are read: 16 bits of each number, and zeros."""
    table = torch.arange(1 << 16, dtype=torch.int32)
    words = wanted.numpy().view(np.uint32) >> 16
    parts = [table.as_strided((1,), (1,), int(word)) for word in words]
    return (torch.cat(parts) * (1 << 16)).view(torch.float32)


def looked_up(wanted: Tensor) -> Tensor:
    """The same by an operand that names the element."""
    table = torch.arange(1 << 16, dtype=torch.int32)
    words = wanted.numpy().view(np.uint32) >> 16
    return (torch.stack([table.select(0, int(word)) for word in words]) * (1 << 16)).view(torch.float32)


def model(count: int = WEIGHTS) -> tuple[nn.Module, torch.optim.Optimizer]:
    made = nn.Linear(count, 1, bias=False)
    return made, torch.optim.SGD(made.parameters(), lr=0.01)


def update(batch: dict[str, Tensor], net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    (net(batch["x"]) ** 2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def batches(count: int = WEIGHTS) -> list[dict[str, Tensor]]:
    return [{"x": torch.randn(2, count, generator=torch.Generator().manual_seed(i))} for i in range(STEPS)]


def over(result: dict[str, Any]) -> set[str]:
    """The channels that were found over their budgets."""
    assert result["verdict"] == "match", result["first_difference"]
    return {f["evidence"]["channel"] for f in result["findings"] if f["id"] == "transcript.chosen_bits"}


def at_start(path: Path, make: Callable[[Tensor], Tensor], wanted: Tensor) -> None:
    """Puts the numbers in the place of W_0, in the recorded initialisation."""

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        net, optimizer = model(len(wanted))
        with torch.no_grad():
            net.weight.copy_(make(wanted).view(1, -1))  # type: ignore[operator, union-attr]
        return net, optimizer

    train(path, build, update, batches(len(wanted)))


@pytest.mark.parametrize("make", [in_bytes, drawn, sliced, looked_up])
def test_integers_in_operands_are_charged_their_bits(tmp_path: Path, make: Callable[[Tensor], Tensor]) -> None:
    count = 64
    bits = {}
    for name, wanted in (("foreign", foreign(count)), ("zeros", torch.zeros(count))):
        at_start(tmp_path / name, make, wanted)
        result = replay_here(tmp_path / name)
        assert result["verdict"] == "match"
        bits[name] = result["chosen"]["structure"]["bits"] + result["chosen"]["literals"]["bits"]
    assert bits["foreign"] - bits["zeros"] > 15 * count, "16 bits of each number came in, and its sign may be short"


def test_constants_of_operations_are_charged_their_bits(tmp_path: Path) -> None:
    numbers = foreign(64).tolist()
    at_start(tmp_path / "run", lambda _: torch.stack([torch.full((), number) for number in numbers]), foreign(64))
    result = replay_here(tmp_path / "run")
    assert result["chosen"]["literals"]["bits"] > 64 * 32


def test_honest_training_stays_within_every_budget(tmp_path: Path) -> None:
    train(tmp_path / "run", model, update, batches())
    result = replay_here(tmp_path / "run")
    assert over(result) == set()
    for channel, entry in result["chosen"].items():
        assert entry["budget"] == BUDGETS.get(channel)
        assert entry["budget"] is None or entry["bits"] < entry["budget"] / 10
