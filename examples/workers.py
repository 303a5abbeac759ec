"""Record a plain loop whose batches worker processes load, then replay it: `python examples/workers.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import prover
from weighbridge import replay

RUN = Path("runs/workers")


class Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures that are flipped at random, in the process that loads them."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        picture = torch.from_numpy(np.random.default_rng(number).random((1, 8, 8), dtype=np.float32))
        return torch.flip(picture, [2]) if torch.rand(()) < 0.5 else picture, int(picture.mean() > 0.5)


def main(out: Path = RUN) -> None:
    shutil.rmtree(out, ignore_errors=True)
    with prover.follow(out, seed=7):  # all that is added
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        loading = dict(num_workers=2, persistent_workers=True, prefetch_factor=2)
        training = DataLoader(Pictures(), batch_size=4, shuffle=True, **loading)
        validation = DataLoader(Pictures(), batch_size=8, **loading)
        for epoch in range(2):
            net.train()
            for number, (x, y) in enumerate(training):
                (nn.functional.cross_entropy(net(x), y) / 2).backward()
                if number % 2:
                    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
            schedule.step()
            net.eval()
            with torch.no_grad():
                right = sum(int((net(x).argmax(dim=1) == y).sum()) for x, y in validation)
            print(f"epoch {epoch}: {right} of {len(Pictures())} right")
            torch.save(net.state_dict(), out.with_name(out.name + "-checkpoint.pt"))


if __name__ == "__main__":
    main()
    result = replay(RUN)
    print(result.verdict, result.state)
    for finding in result.findings:
        print(f"{finding.severity}  {finding.id}: {finding.message}")
