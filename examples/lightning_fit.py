"""Record a training with Lightning, then replay it: `python examples/lightning_fit.py`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import prover
from weighbridge import replay

RUN = Path("runs/lightning_fit")


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4))

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        self.log("right", (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=8)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main(out: Path = RUN) -> None:
    shutil.rmtree(out, ignore_errors=True)
    with prover.follow(out, seed=7):  # all that is added
        rows = torch.from_numpy(np.random.default_rng(0).standard_normal((32, 16), dtype=np.float32))
        data = TensorDataset(rows, rows[:, :4].argmax(dim=1))
        trainer = lightning.Trainer(
            max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=1.0, accelerator="cpu", logger=False,
            callbacks=[ModelCheckpoint(out.with_name(out.name + "-checkpoints"), save_last=True)],
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Classifier(), DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8))


if __name__ == "__main__":
    main()
    result = replay(RUN)
    print(result.verdict, result.state)
    for finding in result.findings:
        print(f"{finding.severity}  {finding.id}: {finding.message}")
