"""Records a small training, as a process, so that it can be on the terms of another machine.

Run `python compare_job.py RUN [CHANGE]`. Its matrix product meets ties that only the order of summation decides, so two
kinds of machine round them differently. Changes: `lr`, `batch`, `seed`, `bit` (one bit of the weights, by an edit that
flips none otherwise), `longer`, `program`.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

from prover import Recorder

STEPS = 3


def ties(generator: torch.Generator) -> Tensor:
    """Rows that add up to half way between two float32, with terms so large that float64 loses some of it."""
    large = (torch.randint(0, 1 << 20, (5, 31), generator=generator) / 2**20 + 1) * 2.0**29
    rows = torch.cat([torch.ones(5, 1), torch.full((5, 1), 3 * 2.0**-24), large, -large], 1)
    return torch.stack([row[torch.randperm(64, generator=generator)] for row in rows])


def main(path: str, change: str) -> None:
    """Records one run."""
    generator = torch.Generator().manual_seed(2)
    batches = [ties(generator) for _ in range(STEPS + (change == "longer"))]
    if change == "batch":
        batches[1][2, 3] *= 2
    with Recorder(path, seed=8 if change == "seed" else 7, checkpoint_every=50) as recorder:
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(64, 3, bias=False), nn.Dropout(0.5))
            nn.init.ones_(model[0].weight)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        recorder.attach(model, optimizer)
        for number, batch in enumerate(batches):
            if change == "lr" and number == 1:
                optimizer.param_groups[0]["lr"] = 0.25
            if number == 2:
                with recorder.edit(), torch.no_grad():
                    model[0].weight.view(torch.int32)[1, 5:6] ^= 4 if change == "bit" else 0
            with recorder.step(batch):
                out = model(batch)
                if change == "program" and number == 1:
                    out = out.abs()
                out.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
