"""Weights made elsewhere that come in through how much each step is fed.

Which program runs follows from the shapes of the batch. So a Prover who has a program for each of sixteen shapes, which
differ in one constant, brings four bits in with every step: a row of digits, from which the last step makes weights. No
datum carries them, and with a data commitment nothing is out of order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recordings import replay_here
from torch import Tensor, nn

from prover import Recorder
from weighbridge.program.tape_policy import BUDGETS
from weighbridge.transcript.data import DataCommitment, VerifiableOrder

KINDS = 16
DIGITS = 48
LUCK = 8.0
"""Bits by which a description may be shorter than an even choice: no code does that for more than one in 256."""


class Register(nn.Module):
    """Digits that were shifted in, and a weight."""

    digits: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("digits", torch.zeros(DIGITS))


def wanted(random: bool) -> list[int]:
    """Every digit once, so that all programs are known; then those of a model made elsewhere, or always the same."""
    draw = torch.Generator().manual_seed(8)
    foreign = torch.randint(0, KINDS, (DIGITS,), generator=draw).tolist()
    return [*range(KINDS), *(foreign if random else [0] * DIGITS)]


def empty(digits: list[int], seed: bytes) -> tuple[DataCommitment, list[tuple[int, Tensor]]]:
    """Batches of no rows, whose width is the digit; they use up no record."""
    data = DataCommitment.over([{"x": torch.ones(4)}], VerifiableOrder(seed, 1))
    return data, [(digit, torch.zeros(0, digit + 1)) for digit in digits]


def counted(digits: list[int], seed: bytes) -> tuple[DataCommitment, list[tuple[int, Tensor]]]:
    """So many records as the digit says, in the committed order."""
    total = sum(digits) + len(digits)
    records = torch.randn(total, 4, generator=torch.Generator().manual_seed(1))
    data = DataCommitment.over(({"x": row} for row in records), VerifiableOrder(seed, 1))
    rows = iter(records[torch.from_numpy(data.ids())].split([digit + 1 for digit in digits]))
    return data, [(digit, next(rows)) for digit in digits]


def uncommitted(digits: list[int], seed: bytes) -> tuple[None, list[tuple[int, Tensor]]]:
    """The same eight numbers, with as many dimensions of one element as the digit says."""
    return None, [(digit, torch.ones((1,) * digit + (8,))) for digit in digits]


def whole(digits: list[int], seed: bytes) -> tuple[DataCommitment, Tensor]:
    """As many records for each step, in the committed order."""
    records = torch.randn(len(digits), KINDS + 1, 4, generator=torch.Generator().manual_seed(1))
    data = DataCommitment.over(({"x": row} for row in records.flatten(0, 1)), VerifiableOrder(seed, 1))
    return data, records.flatten(0, 1)[torch.from_numpy(data.ids())].view_as(records)


def shared_out(digits: list[int], seed: bytes) -> tuple[DataCommitment, list[tuple[int, Any]]]:
    """Two batches of a step share the same number of records, of which the first gets as many as the digit says."""
    data, rows = whole(digits, seed)
    return data, [
        (digit, [{"x": each[: digit + 1]}, {"x": each[digit + 1 :]}]) for digit, each in zip(digits, rows, strict=True)
    ]


def empty_beside(digits: list[int], seed: bytes) -> tuple[DataCommitment, list[tuple[int, Any]]]:
    """Beside the batch is another of no rows, whose width is the digit."""
    data, rows = whole(digits, seed)
    return data, [
        (digit, [{"x": each}, {"x": torch.zeros(0, digit + 1)}]) for digit, each in zip(digits, rows, strict=True)
    ]


WAYS = {"empty batches": (empty, "schedule"), "numbers of records": (counted, "schedule"),
        "shares of a list of batches": (shared_out, "schedule"), "empty batches of a list": (empty_beside, "schedule"),
        "shapes of what nothing commits to": (uncommitted, "batch")}  # fmt: skip


def spelled(path: Path, digits: list[int], way: Any) -> tuple[Tensor, dict[str, float], list[str]]:
    """Records a run that shifts one digit in with each step; returns what it holds, and what its replay says."""
    data, feeds = way(digits, bytes(32))
    seed = 7 if data is None else data.seed()
    with Recorder(path, seed=seed, data=data, checkpoint_every=1000) as recorder:
        with recorder.initialisation():
            model = Register()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        for digit, batch in feeds:
            with recorder.step(batch if isinstance(batch, list) else {"x": batch}), torch.no_grad():
                model.digits.copy_(torch.cat([model.digits[1:], torch.full((1,), float(digit))]))
    result = replay_here(path)
    assert result["verdict"] == "match", result["findings"]
    bits = {channel: entry["bits"] for channel, entry in result["chosen"].items()}
    return model.digits, bits, [f["id"] for f in result["findings"] if f["severity"] != "info"]


@pytest.mark.parametrize("name", WAYS)
def test_digits_that_are_the_shapes_of_batches_are_charged(tmp_path: Path, name: str) -> None:
    way, channel = WAYS[name]
    same = spelled(tmp_path / "same", wanted(False), way)
    held, bits, _ = spelled(tmp_path / "foreign", wanted(True), way)
    assert held.int().tolist() == wanted(True)[KINDS:], "the attack works"
    chosen = DIGITS * math.log2(KINDS)
    assert bits[channel] - same[1][channel] >= chosen - LUCK
    assert sum(bits.values()) - sum(same[1].values()) >= chosen - LUCK


def epochs(records: Tensor, order: Tensor, size: int) -> Iterator[Tensor]:
    """Batches of `size`; the last one of each epoch has what is left."""
    for epoch in order.split(len(records)):
        yield from records[epoch].split(size)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_epochs_that_end_with_a_smaller_batch_pass(tmp_path: Path, accumulated: int) -> None:
    """As every loader gives them: 26 records in batches of 8, twelve times; a step may take two of them."""
    records = torch.randn(26, 4, generator=torch.Generator().manual_seed(2))
    data = DataCommitment.over(({"x": row} for row in records), VerifiableOrder(bytes(32), 12))
    with Recorder(tmp_path / "run", seed=data.seed() or 0, data=data, checkpoint_every=1000) as recorder:
        with recorder.initialisation():
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        batches = iter(epochs(records, torch.from_numpy(data.ids()), 8))
        while taken := list(islice(batches, accumulated)):
            with recorder.step([{"x": batch} for batch in taken] if accumulated > 1 else {"x": taken[0]}):
                for batch in taken:
                    model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    result = replay_here(tmp_path / "run")
    assert result["verdict"] == "match"
    assert [f["id"] for f in result["findings"] if f["severity"] != "info"] == []
    assert result["chosen"]["schedule"]["bits"] < BUDGETS["schedule"] / 10
