"""Record a sharded training on two ranks, then replay it: `torchrun --nproc-per-node 2 examples/fsdp2.py`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import prover
from weighbridge import replay_job

RUN = Path("runs/fsdp2")
DATA = TensorDataset(torch.from_numpy(np.random.default_rng(0).integers(0, 64, (32, 9))))


def main(out: Path = RUN) -> None:
    shutil.rmtree(out, ignore_errors=True)
    dist.init_process_group("gloo")
    with prover.follow(out, seed=7):  # all that is added
        layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2)]
        model = nn.Sequential(nn.Embedding(64, 16), *layers, nn.Linear(16, 64))
        for part in (*layers, model):
            fully_shard(part)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
        sampler = DistributedSampler(DATA)
        training, validation = DataLoader(DATA, batch_size=4, sampler=sampler), DataLoader(DATA, batch_size=8)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            model.train()
            for number, (words,) in enumerate(training):
                scores = model(words[:, :-1]).flatten(0, 1)
                (nn.functional.cross_entropy(scores, words[:, 1:].flatten()) / 2).backward()
                if number % 2:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                right = sum(int((model(words[:, :-1]).argmax(2) == words[:, 1:]).sum()) for (words,) in validation)
            print(f"epoch {epoch}: {right} words right")
            dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=f"{out}-checkpoint-{epoch}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    if os.environ["RANK"] == "0":
        print(replay_job(RUN).verdict)
