"""Record the training of a diffusion model with diffusers, then replay it: `python examples/diffusion.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from torch.utils.data import DataLoader

import prover
from weighbridge import replay

RUN = Path("runs/diffusion")


def loss_of(model: UNet2DModel, noising: DDPMScheduler, images: torch.Tensor) -> torch.Tensor:
    noise, times = torch.randn_like(images), torch.randint(0, 1000, (len(images),))
    return torch.nn.functional.mse_loss(model(noising.add_noise(images, noise, times), times).sample, noise)


def main(out: Path = RUN) -> None:
    shutil.rmtree(out, ignore_errors=True)
    with prover.follow(out, seed=7):  # all that is added
        images = torch.from_numpy(np.random.default_rng(0).standard_normal((16, 1, 8, 8), dtype=np.float32))
        blocks = dict(
            down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")
        )
        model = UNet2DModel(8, 1, 1, block_out_channels=(8, 16), norm_num_groups=4, **blocks)
        noising = DDPMScheduler(num_train_timesteps=1000)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        average = EMAModel(model.parameters(), model_cls=UNet2DModel, model_config=model.config)
        schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=1, num_training_steps=4)
        training, validation = DataLoader(images, batch_size=4, shuffle=True), DataLoader(images, batch_size=8)
        for epoch in range(2):
            model.train()
            for number, batch in enumerate(training):
                (loss_of(model, noising, batch) / 2).backward()
                if number % 2:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                    average.step(model.parameters())
            model.eval()
            with torch.no_grad():
                print(f"epoch {epoch}:", [float(loss_of(model, noising, batch)) for batch in validation])
            average.save_pretrained(out.with_name(out.name + "-average"))


if __name__ == "__main__":
    main()
    result = replay(RUN)
    print(result.verdict, result.state)
    for finding in result.findings:
        print(f"{finding.severity}  {finding.id}: {finding.message}")
