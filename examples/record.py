"""Record a training of your own, then replay it: `python examples/record.py`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from prover import Recorder
from weighbridge import replay

RUN = Path("runs/example")


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batches(count: int) -> Iterator[dict[str, Tensor]]:
    source = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(32, 16, generator=source)
        yield {"x": x, "y": x[:, :4].argmax(dim=1)}


def main() -> None:
    shutil.rmtree(RUN, ignore_errors=True)
    with Recorder(RUN, seed=7) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
        recorder.attach(model, optimizer)
        for batch in batches(10):
            with recorder.step(batch):
                loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    result = replay(RUN)  # in a process of its own, from the tapes alone: none of the code above runs
    print(result.verdict, result.state)
    for finding in result.findings:
        print(f"{finding.severity}  {finding.id}: {finding.message}")


if __name__ == "__main__":
    main()
