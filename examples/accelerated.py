"""Record a training loop that uses Accelerate, then replay it: `python examples/accelerated.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import prover
from weighbridge import replay

RUN = Path("runs/accelerated")


def main(out: Path = RUN) -> None:
    shutil.rmtree(out, ignore_errors=True)
    with prover.follow(out, seed=7):  # all that is added
        rows = torch.from_numpy(np.random.default_rng(0).standard_normal((64, 16), dtype=np.float32))
        data = TensorDataset(rows, rows[:, :4].argmax(dim=1))
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=16)
        training, validation = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=16)
        model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
        training, validation = accelerator.prepare(training, validation)
        for epoch in range(2):
            model.train()
            for x, y in training:
                with accelerator.accumulate(model):
                    accelerator.backward(nn.functional.cross_entropy(model(x), y))
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            model.eval()
            right = 0
            for x, y in validation:
                with torch.no_grad():
                    guesses, labels = accelerator.gather_for_metrics((model(x).argmax(dim=1), y))
                right += int((guesses == labels).sum())
            print(f"epoch {epoch}: {right} of {len(data)} right")
        accelerator.save_state(str(out.with_name(out.name + "-checkpoint")))


if __name__ == "__main__":
    main()
    result = replay(RUN)
    print(result.verdict, result.state)
    for finding in result.findings:
        print(f"{finding.severity}  {finding.id}: {finding.message}")
