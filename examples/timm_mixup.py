"""Record an image classifier that timm trains with Mixup and EMA, then replay it: `python examples/timm_mixup.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from timm import create_model
from timm.data.mixup import FastCollateMixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, dispatch_clip_grad
from torch.utils.data import DataLoader

import prover
from weighbridge import replay

RUN = Path("runs/timm-mixup")
PICTURES = np.random.default_rng(0).integers(0, 256, (32, 3, 32, 32), dtype=np.uint8)
DATA = [(picture, int(picture[0].mean() > 128)) for picture in PICTURES]


def main(out: Path = RUN) -> None:
    shutil.rmtree(out, ignore_errors=True)
    with prover.follow(out, seed=7):  # all that is added
        model = create_model("test_resnet", num_classes=2, drop_rate=0.1)
        optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
        average = ModelEmaV3(model, decay=0.99)
        schedule = CosineLRScheduler(optimizer, t_initial=8, warmup_t=2, warmup_lr_init=1e-5, t_in_epochs=False)
        mixup = FastCollateMixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=2)  # draws while it loads
        training = DataLoader(DATA, batch_size=4, shuffle=True, collate_fn=mixup)
        validation = DataLoader(DATA, batch_size=8)
        criterion, updates = SoftTargetCrossEntropy(), 0
        for epoch in range(2):
            model.train()
            for number, (x, y) in enumerate(training):
                (criterion(model(x.float() / 255), y) / 2).backward()
                if number % 2:
                    dispatch_clip_grad(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    average.update(model)
                    updates += 1
                    schedule.step_update(updates)
            model.eval()
            with torch.no_grad():
                right = sum(int((average(x.float() / 255).argmax(1) == y).sum()) for x, y in validation)
            print(f"epoch {epoch}: {right} of {len(DATA)} right")
            torch.save(average.module.state_dict(), out.with_name(out.name + "-average.pt"))


if __name__ == "__main__":
    main()
    result = replay(RUN)
    print(result.verdict, result.state)
    for finding in result.findings:
        print(f"{finding.severity}  {finding.id}: {finding.message}")
