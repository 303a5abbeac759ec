"""Record a training with Hugging Face's Trainer, then replay it: `python examples/trainer.py`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import prover
from weighbridge import replay

RUN = Path("runs/trainer")


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of tokens of which each follows from the one before."""

    def __init__(self, count: int) -> None:
        begins = np.random.default_rng(0).integers(0, 64, (count, 1))
        self.rows = (begins + 5 * np.arange(16)) % 64

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        ids = torch.tensor(self.rows[number])
        return {"input_ids": ids, "labels": ids}


def main(out: Path = RUN, **options: Any) -> None:
    shutil.rmtree(out, ignore_errors=True)
    with prover.follow(out, seed=7):  # all that is added
        sizes = dict(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
        model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
        arguments = TrainingArguments(
            output_dir=str(out.with_name(out.name + "-checkpoints")), num_train_epochs=2, learning_rate=3e-3,
            per_device_train_batch_size=4, gradient_accumulation_steps=2, max_grad_norm=1.0, weight_decay=0.01,
            lr_scheduler_type="cosine", warmup_steps=2, eval_strategy="epoch", save_strategy="epoch", report_to=[],
            use_cpu=True, **options,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=Rows(32), eval_dataset=Rows(8)).train()


if __name__ == "__main__":
    main()
    result = replay(RUN)
    print(result.verdict, result.state)
    for finding in result.findings:
        print(f"{finding.severity}  {finding.id}: {finding.message}")
