"""Which products of a training are probed on a device: those of 16 bits, each with its sizes and layout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from support.recordings import train
from torch import nn

from weighbridge.core.errors import ReplayWorkerError, WeighbridgeError
from weighbridge.execution import narrow_products
from weighbridge.execution.narrow_products import largest, listed, products_of
from weighbridge.execution.worker_process import Limits
from weighbridge.numerics.units.probing import Product
from weighbridge.transcript.reader import Transcript


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 3))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        x = batch["x"]
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean() + (x.bfloat16() @ x[0].bfloat16()).float().sum()
        (loss + (x @ x.T).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    path = tmp_path_factory.mktemp("probed") / "run"
    train(path, build, step, [{"x": torch.ones(8, 24)}])
    return Transcript.open(path)


def test_products_are_those_of_the_programs(transcript: Transcript) -> None:
    found = products_of(transcript)
    assert Product("bf16 8x24x16", "nt") in found
    assert Product("bf16 8x24x1", "nn") in found, "a matrix times a vector"
    assert not [each for each in found if each.signature.endswith("8x24x8")], "of float32"
    ordered = largest(found, 100)
    assert ordered[0].signature in ("bf16 8x24x16", "bf16 16x8x24"), "the largest first"
    assert set(ordered) == found
    assert largest([*found, *found], 2) == ordered[:2]


def test_a_confined_worker_lists_the_same(transcript: Transcript) -> None:
    assert listed(transcript.path, limits=Limits()) == largest(products_of(transcript), 100)


def test_a_transcript_that_was_altered_has_none(transcript: Transcript, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(transcript.path, copy)
    tape = next((copy / "tapes").iterdir())
    tape.write_bytes(tape.read_bytes()[:-1])
    with pytest.raises(WeighbridgeError):
        listed(copy, limits=Limits())


@pytest.mark.parametrize("answer", [{}, {"products": 1}, {"products": ["none"]}, {"products": [["bf16 1x1x1 nn"]]}])
def test_a_malformed_answer_is_refused(answer: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(narrow_products, "run_worker", lambda *_: {"result": answer})
    with pytest.raises(ReplayWorkerError):
        listed(tmp_path, limits=Limits())
