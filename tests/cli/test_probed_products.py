"""Which products of a training are probed on a device: those of 16 bits, each with its sizes and layout."""

from __future__ import annotations

import pytest
import torch
from support.recordings import train
from torch import nn

from weighbridge.cli.gpu_evidence import products
from weighbridge.cli.gpu_evidence.products import products_of
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
    found = products_of([transcript])
    assert Product("bf16 8x24x16", "nt") in found
    assert Product("bf16 8x24x1", "nn") in found, "a matrix times a vector"
    assert not [each for each in found if each.signature.endswith("8x24x8")], "of float32"
    assert found[0].signature in ("bf16 8x24x16", "bf16 16x8x24"), "the largest first"
    assert len(set(found)) == len(found) == len(products_of([transcript, transcript]))


def test_no_more_are_probed_than_a_statement_has(transcript: Transcript, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = products_of([transcript])
    monkeypatch.setattr(products, "MOST_PRODUCTS", 2)
    assert products_of([transcript]) == whole[:2]
